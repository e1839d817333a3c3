// Saved states of Sandboxes.

import {
  type Answer,
  type Call,
  content,
  get,
  nothing,
  once,
  queryOf,
  remove,
  request,
  segment,
} from "./api/call.js";
import type { Schemas, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import { bodyOf, type Data } from "./data.js";
import type { CallOptions } from "./options.js";
import { all, PAGE_SIZE, type Page } from "./paging.js";
import { type Resources, resourcesOf } from "./session.js";
import { ByteStream } from "./streams.js";
import { mountOf, type VolumeMount } from "./volumes.js";

/** The saved state of a Sandbox, which never changes. */
export interface SnapshotInfo {
  /** Its ID. */
  snapshotId: string;
  /** The Sandbox that was saved, which may have ended. */
  sandboxId: string;
  /** The Snapshot that this state came from; empty if none. */
  parentId: string;
  /** Its name; empty if none. */
  name: string;
  /**
   * It stays until it is deleted. Others, which pauses and forks make, stay as long as a Sandbox
   * refers to them.
   */
  kept: boolean;
  /** It has memory and programs too. Otherwise a Sandbox that starts from it boots. */
  memory: boolean;
  /** In a history, the Snapshot that the Sandbox continues from. */
  current: boolean;
  /** The Template of the Sandbox. */
  template: string;
  /** The size of a Sandbox that starts from it. */
  shape: Resources;
  /** The volumes of a Sandbox that starts from it. A volume may have been deleted since. */
  volumes: VolumeMount[];
  /** The build of the engine that can restore its memory. */
  engineBuild: string;
  /** Its size on disk. */
  sizeBytes: number;
  /** How many Sandboxes that have not ended refer to it. */
  uses: number;
  /** When it was made. */
  createdAt: Date | undefined;
}

/** The saved states of your Sandboxes: `client.snapshots`. */
export class Snapshots {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /** Returns the Snapshots, newest first, also of Sandboxes that have ended. */
  async list(
    options: CallOptions & {
      /** Only Snapshots of this Sandbox. */
      sandboxId?: string;
      /** How many at most. Default: all. */
      limit?: number;
    } = {},
  ): Promise<SnapshotInfo[]> {
    const { sandboxId, limit } = options;
    return all((cursor, left) => {
      const size = limit === undefined ? undefined : Math.min(left, PAGE_SIZE);
      return this.#client.call(page(size, cursor, sandboxId), options);
    }, limit);
  }

  /**
   * Returns a Snapshot; only its `uses` can change.
   *
   * @param snapshot - the Snapshot, or its ID.
   * @throws {@link NotFoundError} no such Snapshot exists.
   */
  async get(snapshot: SnapshotInfo | string, options: CallOptions = {}): Promise<SnapshotInfo> {
    return this.#client.call(get(pathOf(snapshot), oneSnapshot), options);
  }

  /**
   * Deletes a Snapshot. Running Sandboxes are not touched.
   *
   * @param snapshot - the Snapshot, or its ID.
   * @throws {@link NotFoundError} no such Snapshot exists.
   * @throws {@link ConflictError} a Sandbox is paused in it, or starts from it.
   */
  async delete(snapshot: SnapshotInfo | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call(remove(pathOf(snapshot), nothing), options);
  }

  /**
   * Returns a Snapshot as one file, to be read piece by piece. It holds all files and all memory of
   * the Sandbox, and is not encrypted. Read it to its end: a part of it cannot be imported.
   *
   * @param snapshot - the Snapshot, or its ID.
   * @throws {@link NotFoundError} no such Snapshot exists.
   * @throws {@link ExhaustedError} too many run already.
   */
  async export(
    snapshot: SnapshotInfo | string,
    options: CallOptions & {
      /**
       * Put the image of its template into the file too, some hundred megabytes, for a server that
       * does not have the same one.
       */
      withTemplate?: boolean;
    } = {},
  ): Promise<ByteStream> {
    const call = get(`${pathOf(snapshot)}/export`, content, {
      query: queryOf({ with_template: options.withTemplate }),
      readSeconds: FILE_SECONDS,
    });
    return new ByteStream(await this.#client.open(call, options));
  }

  /**
   * Makes a Snapshot of a file that {@link export} gave, here or at another server.
   *
   * @throws {@link InvalidRequestError} the file was cut off or changed, or is none.
   * @throws {@link PermissionDeniedError} it comes from a server that this one does not trust.
   * @throws {@link ConflictError} something that it needs is missing, such as its template's image.
   * @throws {@link ExhaustedError} too many run already, or the disk is full.
   */
  async import(
    file: Data,
    options: CallOptions & {
      /** Its name. Default: its name in the file. */
      name?: string;
      /** Import once for this key; the file may have 16 MiB then. Default: none. */
      idempotencyKey?: string;
    } = {},
  ): Promise<SnapshotInfo> {
    const call = request("POST", "/api/v1/snapshots/import", oneSnapshot, {
      query: queryOf({ name: options.name }),
      body: bodyOf(file),
      headers: { "Content-Type": "application/octet-stream" },
      readSeconds: FILE_SECONDS,
    });
    // The server keeps the whole body of a request with a key, so files go without.
    const key = options.idempotencyKey;
    return this.#client.call(key === undefined ? call : once(call, key), options);
  }
}

// Gathering a state from the disk, or putting it there, takes its time.
const FILE_SECONDS = 600;

/** Returns the ID or name of a Snapshot. */
export function snapshotIdOf(snapshot: SnapshotInfo | string): string {
  return typeof snapshot === "string" ? snapshot : snapshot.snapshotId;
}

function pathOf(snapshot: SnapshotInfo | string): string {
  return `/api/v1/snapshots/${segment(snapshotIdOf(snapshot), "snapshot ID")}`;
}

function page(
  limit: number | undefined,
  cursor: string | undefined,
  sandboxId: string | undefined,
): Call<Page<SnapshotInfo>> {
  return get("/api/v1/snapshots", snapshotPage, {
    query: queryOf({ limit, cursor, session_id: sandboxId }),
  });
}

/** Decodes a page of Snapshots. */
export function snapshotPage(answer: Answer): Page<SnapshotInfo> {
  const obj = answer.json<Schemas["SnapshotPage"]>();
  return { items: obj.list("snapshots").map(snapshotOf), next: obj.text("next_cursor") };
}

/** Decodes one Snapshot. */
export function oneSnapshot(answer: Answer): SnapshotInfo {
  return snapshotOf(answer.json());
}

function snapshotOf(obj: Wire<Schemas["Snapshot"]>): SnapshotInfo {
  return {
    snapshotId: obj.required("snapshot_id"),
    sandboxId: obj.text("sandbox_id"),
    parentId: obj.text("parent_id"),
    name: obj.text("name"),
    kept: obj.flag("kept"),
    memory: obj.flag("memory"),
    current: obj.flag("current"),
    template: obj.text("template"),
    shape: resourcesOf(obj.object("shape")),
    volumes: obj.list("volumes").map(mountOf),
    engineBuild: obj.text("engine_build"),
    sizeBytes: obj.count("size_bytes"),
    uses: obj.count("uses"),
    createdAt: obj.time("created_at"),
  };
}
