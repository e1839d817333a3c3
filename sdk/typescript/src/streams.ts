// Answers that are read piece by piece.

import { Decoder, type Event } from "./api/sse.js";
import { decode } from "./api/wire.js";
import { streamOf } from "./data.js";
import { asyncDispose } from "./dispose.js";

/** The source of a stream's bytes; for this package's use. */
export interface Pieces {
  /** Headers of the answer. */
  headers: Headers;
  /** Returns the next piece; undefined at the end. */
  next(): Promise<Uint8Array | undefined>;
  /** Stops reading. */
  close(): Promise<void>;
}

/**
 * The bytes of a file or an archive, piece by piece as they come.
 *
 * Iterate over it with `for await`, or take {@link readable} for a Web Stream. It can be read once.
 * Leaving the loop early closes the connection; so does {@link close}, and `await using`.
 *
 * Reading throws a {@link ConnectionFailedError} when the connection breaks before the end, and a
 * {@link SandboxTimeoutError} when the server stops sending.
 */
export class ByteStream implements AsyncIterable<Uint8Array>, AsyncDisposable {
  readonly #source: Pieces;

  /** For this package's use. */
  constructor(source: Pieces) {
    this.#source = source;
  }

  /** Headers of the answer. */
  get headers(): Headers {
    return this.#source.headers;
  }

  /** The same as a Web Stream; cancelling it closes the connection. */
  get readable(): ReadableStream<Uint8Array> {
    return streamOf(this);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    try {
      for (;;) {
        const piece = await this.#source.next();
        if (piece === undefined) return;
        yield piece;
      }
    } finally {
      await this.close();
    }
  }

  /** Returns all that is left of it. */
  async bytes(): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this) pieces.push(piece);
    return concat(pieces);
  }

  /** Returns all that is left of it as text; bytes that are not UTF-8 become U+FFFD. */
  async text(): Promise<string> {
    return decode(await this.bytes());
  }

  /** Stops reading; more than once is the same as once. */
  async close(): Promise<void> {
    await this.#source.close();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Joins pieces into one. */
export function concat(pieces: readonly Uint8Array[]): Uint8Array {
  const [first] = pieces;
  if (first !== undefined && pieces.length === 1) return first;
  const all = new Uint8Array(pieces.reduce((size, piece) => size + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** The server-sent events of a stream. Read them to the end: the connection is used again then. */
export class Events {
  readonly #source: Pieces;
  readonly #decoder = new Decoder();
  readonly #ready: Event[] = [];

  constructor(source: Pieces) {
    this.#source = source;
  }

  /** Returns the next event; undefined at the end. */
  async next(): Promise<Event | undefined> {
    for (;;) {
      const event = this.#ready.shift();
      if (event) return event;
      const piece = await this.#source.next();
      if (piece === undefined) return undefined;
      this.#ready.push(...this.#decoder.feed(piece));
    }
  }

  /** Stops reading. */
  async close(): Promise<void> {
    await this.#source.close();
  }
}
