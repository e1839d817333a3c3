// Streams of events that are opened again where they broke.

import type { Call } from "./api/call.js";
import * as failures from "./api/failures.js";
import type { Event } from "./api/sse.js";
import type { Client } from "./client.js";
import { clock } from "./clock.js";
import {
  CloudSandboxError,
  ConnectionFailedError,
  SandboxTimeoutError,
  UnavailableError,
} from "./errors.js";
import { backoff } from "./retry.js";
import { Events } from "./streams.js";

// A server that is restarted is back within this.
const PATIENCE_SECONDS = 60;

/** Whether an error may come from a server that restarts. */
export function isAway(err: unknown): err is CloudSandboxError {
  return (
    err instanceof ConnectionFailedError ||
    err instanceof SandboxTimeoutError ||
    err instanceof UnavailableError
  );
}

/** Decides how long to wait for a server that is away. */
export class Patience {
  #tries = 0; // since all was well
  #giveUp = 0;

  /** All is well. */
  reset(): void {
    this.#tries = 0;
  }

  /** Pauses before another try, or throws err after a minute of tries. */
  async wait(err: CloudSandboxError, signal: AbortSignal | undefined): Promise<void> {
    if (this.#tries === 0) this.#giveUp = clock.now() + PATIENCE_SECONDS;
    else if (clock.now() >= this.#giveUp) throw err;
    this.#tries++;
    const pause = backoff(this.#tries, clock.random());
    await clock.sleep(Math.max(pause, Math.min(err.retryAfter ?? 0, PATIENCE_SECONDS)), signal);
  }
}

/** Reads events, and resumes where it stopped when the connection breaks. */
export class Follower {
  readonly #client: Client;
  readonly #ask: () => Call<unknown>;
  readonly #signal: AbortSignal | undefined;
  readonly #patience = new Patience();
  readonly #left = new AbortController();
  #events: Events | undefined;

  /** @param ask - makes the request that continues at the reader's position. */
  constructor(client: Client, ask: () => Call<unknown>, signal: AbortSignal | undefined) {
    this.#client = client;
    this.#ask = ask;
    this.#signal = signal;
  }

  /** Begins. */
  async open(): Promise<void> {
    const signal = this.#signal
      ? AbortSignal.any([this.#signal, this.#left.signal])
      : this.#left.signal;
    this.#events = new Events(await this.#client.open(this.#ask(), { signal }));
  }

  /**
   * Returns the next event; undefined when it was closed.
   *
   * Throws a CloudSandboxError when the server ended the stream with one, or was away for a minute,
   * and the reason of the signal.
   */
  async next(): Promise<Event | undefined> {
    while (!this.#left.signal.aborted) {
      try {
        if (!this.#events) await this.open();
        const event = await this.#nextEvent();
        if (event.name !== "start") this.#patience.reset(); // each stream begins with one
        return event;
      } catch (err) {
        if (this.#left.signal.aborted) return undefined;
        if (!isAway(err)) throw err;
        await this.#leave();
        await this.#patience.wait(err, this.#signal);
      }
    }
    return undefined;
  }

  async #nextEvent(): Promise<Event> {
    const event = await this.#events?.next();
    if (!event) throw new ConnectionFailedError("the stream ended before its last event");
    if (event.name === "error") throw failures.ofEvent(event.data);
    return event;
  }

  /** Reads to the end of the stream, so that the connection is used again. */
  async finish(): Promise<void> {
    try {
      while (await this.#events?.next());
    } catch (err) {
      if (!(err instanceof CloudSandboxError)) throw err;
    }
  }

  async #leave(): Promise<void> {
    const events = this.#events;
    this.#events = undefined;
    await events?.close();
  }

  /** Stops; more than once is the same as once. */
  async close(): Promise<void> {
    this.#left.abort(); // ends a pending read or connection too
    await this.#leave();
  }
}
