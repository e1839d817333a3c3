// Changes of files as they happen.

import { type Call, get, nothing, queryOf } from "./api/call.js";
import type { Event } from "./api/sse.js";
import { type Schemas, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import { streamOf } from "./data.js";
import { asyncDispose } from "./dispose.js";
import { changeOf, type FileChange } from "./filemodels.js";
import { Follower } from "./following.js";
import type { CallOptions } from "./options.js";

/** How a folder is watched. */
export interface WatchOptions extends CallOptions {
  /** Begin after this cursor. Default: now. */
  since?: string;
  /** Also changes in folders below it. */
  recursive?: boolean;
  /** The acting user. */
  user?: string;
}

/**
 * Changes below a folder, as `files.watch` follows them.
 *
 * Iterate over it with `for await`. It ends with an error: {@link NotFoundError} when the folder is
 * removed, others when the Sandbox ends. Leaving the loop stops it, and so do {@link close} and
 * `await using`.
 */
export class FileWatch implements AsyncIterable<FileChange>, AsyncDisposable {
  readonly #follower: Follower;
  readonly #pending: FileChange[] = [];
  #cursor: string | undefined;

  private constructor(client: Client, sandboxId: string, path: string, options: WatchOptions) {
    this.#cursor = options.since;
    const ask = () => watch(sandboxId, path, { ...options, since: this.#cursor });
    this.#follower = new Follower(client, ask, options.signal);
  }

  /** @internal Begins, and returns once every later change is reported. */
  static async open(
    client: Client,
    sandboxId: string,
    path: string,
    options: WatchOptions,
  ): Promise<FileWatch> {
    const watch = new FileWatch(client, sandboxId, path, options);
    try {
      await watch.#follower.open();
      await watch.#advance();
    } catch (err) {
      await watch.close();
      throw err;
    }
    return watch;
  }

  /** Its position: pass it as `since` for the changes after it. */
  get cursor(): string | undefined {
    return this.#cursor;
  }

  /** The same as a Web Stream; cancelling it stops following. */
  get readable(): ReadableStream<FileChange> {
    return streamOf(this);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<FileChange, void, undefined> {
    try {
      for (;;) {
        const change = this.#pending.shift();
        if (change) yield change;
        else if (!(await this.#advance())) return;
      }
    } finally {
      await this.close();
    }
  }

  /** Takes the next event; false when there is none. */
  async #advance(): Promise<boolean> {
    const event = await this.#follower.next();
    if (!event) return false;
    const { change, tells } = heard(event);
    this.#cursor = change.cursor || this.#cursor;
    if (tells) this.#pending.push(change);
    return true;
  }

  /** Stops following; more than once is the same as once. */
  async close(): Promise<void> {
    await this.#follower.close();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

function watch(
  sandboxId: string,
  path: string,
  options: Omit<WatchOptions, "since"> & { since: string | undefined },
): Call<void> {
  const { since, recursive, user } = options;
  return get("/api/v1/files/watch", nothing, {
    query: queryOf({ sandbox_id: sandboxId, path, since, recursive, user }),
    headers: { Accept: "text/event-stream" },
  });
}

/** Decodes an event of a watch: the position, and whether to report it. */
function heard(event: Event): { change: FileChange; tells: boolean } {
  const obj = Wire.parse<Schemas["FileChange"] & { reset?: boolean }>(event.data);
  const change = changeOf(obj);
  if (event.name !== "start" && event.name !== "reset") return { change, tells: true };
  const tells = event.name === "reset" || obj.flag("reset");
  return { change: { ...change, type: "reset" }, tells };
}
