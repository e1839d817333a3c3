// A process whose input and output are at hand.

import type { Call } from "./api/call.js";
import * as failures from "./api/failures.js";
import { encode, type Schemas, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import { clock } from "./clock.js";
import { asyncDispose } from "./dispose.js";
import { ConnectionFailedError } from "./errors.js";
import { isAway, Patience } from "./following.js";
import { type ProcessInfo, processOf } from "./processes.js";
import { MAX_RETRIES } from "./retry.js";
import { NotOpened, Socket } from "./sockets.js";

// After so long without a message, the state of the process shows whether the connection still
// works.
const SILENCE_SECONDS = 60;
// How much may wait to be sent before a writer waits.
const MAX_BUFFERED_BYTES = 1 << 20;

/** A message of the server beside output. */
interface Message {
  type: string;
  offset: number;
  next_offset: number;
  process: Schemas["Process"];
  error: failures.WireError;
}

/**
 * The input and output of a process, over one connection.
 *
 * Iterate over it with `for await` for the bytes that the process writes, until it has ended.
 * Leaving the loop keeps it open: write, and iterate again. When the connection breaks, reading
 * resumes where it stopped. {@link close}, and `await using`, leaves the process running, and any
 * number of clients may be attached to one.
 */
export class Terminal implements AsyncIterable<Uint8Array>, AsyncDisposable {
  /** The ID of the process in its Sandbox. */
  readonly processId: string;

  readonly #client: Client;
  readonly #ask: (offset: number) => Call<void>;
  readonly #look: Call<ProcessInfo>;
  readonly #signal: AbortSignal | undefined;
  readonly #patience = new Patience();
  #offset: number;
  #dropped = 0;
  #info: ProcessInfo | undefined;
  #socket: Socket | undefined;
  #closed = false;
  #over = false; // the process has ended, and all of its output was received

  private constructor(
    client: Client,
    processId: string,
    ask: (offset: number) => Call<void>,
    look: Call<ProcessInfo>,
    start: number,
    signal: AbortSignal | undefined,
  ) {
    this.#client = client;
    this.processId = processId;
    this.#ask = ask;
    this.#look = look;
    this.#offset = start;
    this.#signal = signal;
  }

  /** @internal Attaches to a process. */
  static async open(
    client: Client,
    processId: string,
    ask: (offset: number) => Call<void>,
    look: Call<ProcessInfo>,
    start: number,
    signal: AbortSignal | undefined,
  ): Promise<Terminal> {
    const terminal = new Terminal(client, processId, ask, look, start, signal);
    for (let left = client.retries ? MAX_RETRIES : 0; ; left--) {
      try {
        await terminal.#connect();
        return terminal;
      } catch (err) {
        if (!(err instanceof NotOpened) || left === 0) throw err;
        await terminal.#patience.wait(err, signal);
      }
    }
  }

  async #connect(): Promise<Socket> {
    const [url, protocols] = await this.#client.socketAddress(
      this.#ask(this.#offset),
      this.#signal,
    );
    try {
      this.#socket = await Socket.open(url, protocols, this.#signal);
    } catch (err) {
      // A WebSocket does not tell why it was refused; another request does.
      if (err instanceof NotOpened) await this.#client.call(this.#look, this.#options());
      throw err;
    }
    if (this.#closed) this.#lose();
    return this.#socket ?? raise(new ConnectionFailedError("the terminal was closed"));
  }

  #options(): { signal?: AbortSignal } {
    return this.#signal ? { signal: this.#signal } : {};
  }

  /**
   * The process as it was when the connection opened, or when it ended; `undefined` before the
   * first of it was read.
   */
  get info(): ProcessInfo | undefined {
    return this.#info;
  }

  /** The offset of the next byte of output; below 0 before the first byte came. */
  get offset(): number {
    return this.#offset;
  }

  /** How many bytes were left out, because they came too fast or are no longer kept. */
  get dropped(): number {
    return this.#dropped;
  }

  /** The output of the process as a Web Stream; cancelling it keeps the terminal open. */
  get readable(): ReadableStream<Uint8Array> {
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          const piece = await this.#next();
          if (piece) controller.enqueue(piece);
          else controller.close();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** The input of the process as a Web Stream; closing it ends the input. */
  get writable(): WritableStream<string | Uint8Array> {
    return new WritableStream<string | Uint8Array>({
      write: (piece) => this.write(piece),
      close: () => this.sendEof(),
    });
  }

  /**
   * Reads. A write or request that failed is thrown here as a {@link CloudSandboxError}, and had no
   * effect. A {@link ConnectionFailedError} means that the server was away for a minute.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    for (;;) {
      const piece = await this.#next();
      if (!piece) return;
      yield piece;
    }
  }

  async #next(): Promise<Uint8Array | undefined> {
    while (!(this.#closed || this.#over)) {
      let message: string | Uint8Array | undefined;
      try {
        const socket = this.#socket ?? (await this.#connect());
        message = await socket.receive(SILENCE_SECONDS, this.#signal);
        if (message === undefined) await this.#listen();
      } catch (err) {
        if (this.#closed) break;
        if (!isAway(err)) throw err;
        this.#lose();
        await this.#patience.wait(err, this.#signal);
        continue;
      }
      if (message instanceof Uint8Array) {
        this.#patience.reset();
        this.#offset += message.length;
        if (message.length > 0) return message;
      } else if (message !== undefined) {
        this.#heed(message);
      }
    }
    await this.close();
    return undefined;
  }

  /** Throws if the process has output that did not come. */
  async #listen(): Promise<void> {
    const info = await this.#client.call(this.#look, this.#options());
    if (info.ended || info.outputEnd > this.#offset) {
      throw new ConnectionFailedError("the connection carries nothing any more");
    }
  }

  #heed(text: string): void {
    const message = Wire.parse<Message>(text);
    const error = message.object("error");
    if (error) throw failures.ofObject(error);
    const type = message.text("type");
    const offset = message.integer("next_offset") ?? message.count("offset");
    if (type === "dropped") this.#dropped += Math.max(offset - this.#offset, 0);
    if (type === "start" || type === "dropped" || type === "end") this.#offset = offset;
    const process = message.object("process");
    if (process) this.#info = processOf(process);
    // "start" of a process that has ended says so too, before its output.
    this.#over = type === "end";
  }

  /**
   * Writes to the input of the process; text is sent as UTF-8.
   *
   * @throws {@link ConnectionFailedError} the connection broke; the process may have got a part.
   */
  async write(data: string | Uint8Array): Promise<void> {
    await this.#send(typeof data === "string" ? encode(data) : data);
  }

  /** Changes the size of the terminal, in characters. */
  async resize(cols: number, rows: number): Promise<void> {
    await this.#send(JSON.stringify({ type: "resize", cols, rows }));
  }

  /** Sends a signal, such as `"INT"`; see {@link Process.signal}. */
  async signal(name: string | number): Promise<void> {
    await this.#send(JSON.stringify({ type: "signal", signal: name }));
  }

  /** Ends its input; a terminal is sent Ctrl-D. */
  async sendEof(): Promise<void> {
    await this.#send(JSON.stringify({ type: "eof" }));
  }

  async #send(message: string | Uint8Array): Promise<void> {
    if (!this.#socket) throw new ConnectionFailedError("the terminal is not connected");
    this.#socket.send(message);
    // The platform does not tell when there is room again.
    while (this.#socket && this.#socket.buffered > MAX_BUFFERED_BYTES) {
      await clock.sleep(0.01, this.#signal);
    }
  }

  #lose(): void {
    this.#socket?.close();
    this.#socket = undefined;
  }

  /** Detaches; the process keeps running. Closing twice is no error. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#lose();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

function raise(err: Error): never {
  throw err;
}
