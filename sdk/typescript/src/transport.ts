// One HTTP request over fetch: its limits of time, and the meaning of its errors.

import { platform } from "#platform";
import { type Body, isStream } from "./api/call.js";
import { iterate, streamOf } from "./data.js";
import { ConnectionFailedError, SandboxTimeoutError } from "./errors.js";
import { concat, type Pieces } from "./streams.js";

const CONNECT_SECONDS = 10;
// A body that is not sent piece by piece is sent at least this fast.
const BYTES_PER_SECOND = 64 << 10;
const MAX_TIMER_MILLIS = 2 ** 31 - 1;

/** A request. */
export interface Outgoing {
  method: string;
  url: string;
  headers: Record<string, string>;
  body: Body | undefined;
  /** How long the server may be silent. */
  readSeconds: number;
  signal: AbortSignal | undefined;
}

/** No connection came to be, so the server saw nothing. */
export class NeverSent extends ConnectionFailedError {}

/** An answer whose body is still to be read. */
export class Incoming implements Pieces {
  readonly status: number;
  readonly headers: Headers;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
  readonly #watch: Watch;
  readonly #seconds: number;
  #closed = false;

  constructor(response: Response, watch: Watch, seconds: number) {
    this.status = response.status;
    this.headers = response.headers;
    this.#reader = response.body?.getReader();
    this.#watch = watch;
    this.#seconds = seconds;
    if (!this.#reader) this.#end();
  }

  async next(): Promise<Uint8Array | undefined> {
    if (this.#closed || !this.#reader) return undefined;
    this.#watch.wait(this.#seconds);
    try {
      const { done, value } = await this.#reader.read();
      this.#watch.rest();
      if (!done) return value;
      this.#end();
      return undefined;
    } catch (err) {
      // A pending read ends like the stream when it is closed.
      if (this.#closed) return undefined;
      this.#end();
      throw this.#watch.meaning(
        err,
        "the server stopped sending",
        () => new ConnectionFailedError(`the connection broke: ${words(err)}`, { cause: err }),
      );
    }
  }

  /** Returns all of it. */
  async all(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for (let piece = await this.next(); piece; piece = await this.next()) pieces.push(piece);
    return concat(pieces);
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#end();
    await this.#reader?.cancel().catch(() => {});
    this.#watch.abort();
  }

  #end(): void {
    this.#closed = true;
    this.#watch.stop();
  }
}

/** Ends a request when the server is silent for too long, or the caller says so. */
class Watch {
  readonly #controller = new AbortController();
  readonly #signal: AbortSignal | undefined;
  readonly #abort = () => this.#controller.abort(this.#signal?.reason);
  #timer: ReturnType<typeof setTimeout> | undefined;
  #silent = false;

  constructor(signal: AbortSignal | undefined) {
    this.#signal = signal;
    signal?.addEventListener("abort", this.#abort, { once: true });
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Lets the server be silent for so many seconds from now on. */
  wait(seconds: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(
      () => {
        this.#silent = true;
        this.#controller.abort();
      },
      Math.min(seconds * 1000, MAX_TIMER_MILLIS),
    );
  }

  /** The server is not waited for, but the caller. */
  rest(): void {
    clearTimeout(this.#timer);
  }

  abort(): void {
    this.#controller.abort();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener("abort", this.#abort);
  }

  /** Returns the error of this package for an error of fetch. */
  meaning(err: unknown, silence: string, otherwise: () => unknown): unknown {
    if (this.#signal?.aborted) return this.#signal.reason;
    if (this.#silent) return new SandboxTimeoutError(silence, { cause: err });
    return otherwise();
  }
}

/**
 * Sends once and returns the answer, of any status.
 *
 * Throws a ConnectionFailedError, which is a NeverSent when the server saw nothing, or a
 * SandboxTimeoutError. The reason of the signal, and errors of the body's source, are thrown
 * unchanged.
 */
export async function send(out: Outgoing): Promise<Incoming> {
  out.signal?.throwIfAborted();
  const watch = new Watch(out.signal);
  const silence = CONNECT_SECONDS + out.readSeconds + sending(out.body);
  let broken: { by: unknown } | undefined;
  async function* watched(pieces: AsyncIterable<Uint8Array>) {
    try {
      watch.rest();
      for await (const piece of pieces) {
        watch.wait(silence);
        yield piece;
        watch.rest();
      }
      watch.wait(silence);
    } catch (err) {
      broken = { by: err };
      throw err;
    }
  }
  try {
    let body: BodyInit | undefined;
    if (isStream(out.body)) {
      const stream = streamOf(watched(out.body.open()));
      body = platform.streamsUploads ? stream : await blobOf(stream);
    } else {
      body = out.body;
    }
    watch.wait(silence);
    const response = await fetch(out.url, {
      method: out.method,
      headers: out.headers,
      redirect: "manual",
      signal: watch.signal,
      ...(body === undefined ? {} : { body, duplex: "half" }),
      ...platform.fetchOptions(),
    });
    watch.rest();
    return new Incoming(response, watch, out.readSeconds);
  } catch (err) {
    watch.stop();
    if (broken) throw broken.by;
    const host = new URL(out.url).host;
    throw watch.meaning(err, "the server did not answer in time", () =>
      platform.neverSent(err)
        ? new NeverSent(`cannot reach ${host}: ${words(err)}`, { cause: err })
        : new ConnectionFailedError(`the connection to ${host} broke: ${words(err)}`, {
            cause: err,
          }),
    );
  }
}

function sending(body: Body | undefined): number {
  if (body instanceof Uint8Array) return body.length / BYTES_PER_SECOND;
  return body instanceof Blob ? body.size / BYTES_PER_SECOND : 0;
}

async function blobOf(stream: ReadableStream<Uint8Array>): Promise<Blob> {
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  for await (const piece of iterate(stream)) pieces.push(piece as Uint8Array<ArrayBuffer>);
  return new Blob(pieces);
}

/** Returns the message of an error, which fetch puts into its cause. */
function words(err: unknown): string {
  const cause = (err as { cause?: unknown }).cause;
  const said = cause instanceof Error ? cause : err;
  if (!(said instanceof Error)) return String(said);
  return said.message || (said as { code?: string }).code || said.name;
}
