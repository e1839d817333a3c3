// Volumes.

import { type Answer, get, nothing, once, post, remove, segment } from "./api/call.js";
import type { Schemas, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";

/** Storage that outlives Sandboxes and is mounted into them. */
export interface VolumeInfo {
  /** Its ID. */
  volumeId: string;
  /** Its name, which never changes. */
  name: string;
  /** Its size, in MiB. */
  sizeMb: number;
  /** The disk space of its files; `undefined` while its node does not answer. */
  usedBytes: number | undefined;
  /** The number of files and folders; `undefined` likewise. */
  files: number | undefined;
  /** When it was made. */
  createdAt: Date | undefined;
}

/** A mounted volume of a Sandbox. */
export interface VolumeMount {
  /** The volume's name. */
  volume: string;
  /** Its ID. */
  volumeId: string;
  /** The folder inside that it is mounted on. */
  path: string;
}

/** Options of a new volume. */
export interface VolumeOptions extends CallOptions {
  /** Its size, in MiB. Default: 1,024. */
  sizeMb?: number;
  /**
   * For a day the answer is the same volume for this key. Default: a new key, so that a call that
   * is tried again makes one volume.
   */
  idempotencyKey?: string;
}

/**
 * Your volumes: `client.volumes`.
 *
 * A volume keeps files beyond the Sandboxes that use them. Any number of Sandboxes can mount it at
 * once (`volumes` of `Sandbox.create`), and each sees the writes of the others.
 */
export class Volumes {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Makes an empty volume.
   *
   * @param name - letters, digits, `_` and `-`, at most 128.
   * @throws {@link ConflictError} one of this name exists.
   * @throws {@link ExhaustedError} the quota has no room for it.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link UnsupportedError} the server keeps no volumes.
   */
  async create(name: string, options: VolumeOptions = {}): Promise<VolumeInfo> {
    const body = { name, size_mb: options.sizeMb } satisfies Schemas["VolumeRequest"];
    return this.#client.call(once(post(PATH, one, body), options.idempotencyKey), options);
  }

  /** Returns all volumes by name, with their usage. */
  async list(options: CallOptions = {}): Promise<VolumeInfo[]> {
    const call = get(PATH, (answer) =>
      answer.json<Schemas["VolumeList"]>().list("volumes").map(volumeOf),
    );
    return this.#client.call(call, options);
  }

  /**
   * Returns a volume with its present usage.
   *
   * @param volume - the volume, its name or its ID.
   * @throws {@link NotFoundError} no such volume exists.
   */
  async get(volume: VolumeInfo | string, options: CallOptions = {}): Promise<VolumeInfo> {
    return this.#client.call(get(pathOf(volume), one), options);
  }

  /**
   * Deletes a volume with all of its files.
   *
   * @param volume - the volume, its name or its ID.
   * @throws {@link NotFoundError} no such volume exists.
   * @throws {@link ConflictError} a Sandbox that has not ended has it mounted.
   */
  async delete(volume: VolumeInfo | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call(remove(pathOf(volume), nothing), options);
  }
}

const PATH = "/api/v1/volumes";

/** Returns the ID or name of a volume. */
export function nameOf(volume: VolumeInfo | string): string {
  return typeof volume === "string" ? volume : volume.volumeId;
}

/** Decodes a mounted volume. */
export function mountOf(obj: Wire<Schemas["MountedVolumes"][number]>): VolumeMount {
  return {
    volume: obj.required("volume"),
    volumeId: obj.text("volume_id"),
    path: obj.required("path"),
  };
}

function pathOf(volume: VolumeInfo | string): string {
  return `${PATH}/${segment(nameOf(volume), "name or ID of a volume")}`;
}

function one(answer: Answer): VolumeInfo {
  return volumeOf(answer.json());
}

function volumeOf(obj: Wire<Schemas["Volume"]>): VolumeInfo {
  return {
    volumeId: obj.required("volume_id"),
    name: obj.required("name"),
    sizeMb: obj.count("size_mb"),
    usedBytes: obj.integer("used_bytes"),
    files: obj.integer("files"),
    createdAt: obj.time("created_at"),
  };
}
