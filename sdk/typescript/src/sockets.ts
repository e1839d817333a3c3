// WebSockets, by the platform's own class.

import { platform } from "#platform";
import { ConnectionFailedError, ProtocolError } from "./errors.js";

// A limit of unread messages. Beyond it the connection is closed, and opened again later.
const MAX_WAITING_BYTES = 8 << 20;
const MAX_TEXT_CHARS = 4 << 20;
const OPEN_SECONDS = 30;

/** The socket could not be opened. The platform hides the server's answer. */
export class NotOpened extends ConnectionFailedError {}

/** A WebSocket: one reader at a time, and any number of writers. */
export class Socket {
  readonly #socket: WebSocket;
  readonly #waiting: (string | Uint8Array)[] = [];
  #bytes = 0;
  #wake: () => void = () => {};
  #over: { error: unknown } | undefined;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    socket.onmessage = (event: MessageEvent<string | ArrayBuffer>) => this.#take(event.data);
    socket.onclose = (event) => this.#ended(event);
  }

  /** Opens one. */
  static async open(
    url: string,
    protocols: string[],
    signal: AbortSignal | undefined,
  ): Promise<Socket> {
    const Class = await platform.webSocket();
    signal?.throwIfAborted();
    const raw = new Class(url, protocols);
    const socket = new Socket(raw);
    await new Promise<void>((resolve, reject) => {
      const fail = (err: unknown) => {
        done();
        socket.close();
        reject(err);
      };
      const failed = () => fail(new NotOpened("the server did not open a WebSocket"));
      const aborted = () => fail(signal?.reason);
      const timer = setTimeout(failed, OPEN_SECONDS * 1000);
      const done = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", aborted);
        raw.onopen = null;
      };
      signal?.addEventListener("abort", aborted, { once: true });
      raw.onopen = () => {
        done();
        raw.onerror = () => {}; // a close event follows
        resolve();
      };
      raw.onerror = failed;
    });
    return socket;
  }

  #take(data: string | ArrayBuffer): void {
    if (this.#over) return;
    const message = typeof data === "string" ? data : new Uint8Array(data);
    if (typeof message === "string" && message.length > MAX_TEXT_CHARS) {
      this.#end(new ProtocolError("the server sent a message that is too large"));
    } else {
      this.#waiting.push(message);
      this.#bytes += message.length;
      if (this.#bytes > MAX_WAITING_BYTES) {
        this.#end(new ConnectionFailedError("the output came faster than it was read"));
      }
    }
    this.#wake();
  }

  #ended(event: CloseEvent): void {
    const reason = event.reason || `code ${event.code}`;
    this.#end(
      event.code === 1002 || event.code === 1007
        ? new ProtocolError(`the server broke the WebSocket's rules: ${reason}`)
        : new ConnectionFailedError(`the server closed the WebSocket: ${reason}`),
    );
  }

  #end(error: unknown): void {
    this.#over ??= { error };
    this.#wake();
    this.#close();
  }

  #close(): void {
    try {
      this.#socket.close(1000);
    } catch {
      // It is closed already, or never was open.
    }
  }

  /**
   * Returns the next message; undefined when none came within so many seconds.
   *
   * Throws a ConnectionFailedError when the connection broke or was closed, and a ProtocolError for
   * invalid messages.
   */
  async receive(
    seconds: number,
    signal: AbortSignal | undefined,
  ): Promise<string | Uint8Array | undefined> {
    signal?.throwIfAborted();
    if (this.#waiting.length === 0 && !this.#over) await this.#wait(seconds, signal);
    signal?.throwIfAborted();
    const message = this.#waiting.shift();
    if (message !== undefined) {
      this.#bytes -= message.length;
      return message;
    }
    if (this.#over) throw this.#over.error;
    return undefined;
  }

  async #wait(seconds: number, signal: AbortSignal | undefined): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let stop = () => {};
    await new Promise<void>((resolve) => {
      timer = setTimeout(resolve, seconds * 1000);
      this.#wake = resolve;
      stop = resolve;
      signal?.addEventListener("abort", stop, { once: true });
    });
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
    this.#wake = () => {};
  }

  /** Sends a message. Throws a ConnectionFailedError when it was closed. */
  send(message: string | Uint8Array): void {
    if (this.#over || this.#socket.readyState !== 1) {
      throw new ConnectionFailedError("the connection is closed");
    }
    this.#socket.send(message as Uint8Array<ArrayBuffer>);
  }

  /** How many bytes were not sent yet. */
  get buffered(): number {
    return this.#socket.bufferedAmount;
  }

  /** Closes it; more than once is the same as once. */
  close(): void {
    this.#end(new ConnectionFailedError("the connection is closed"));
  }
}
