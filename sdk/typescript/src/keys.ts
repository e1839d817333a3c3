// API keys.

import { type Call, get, nothing, post, remove, segment } from "./api/call.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";

/** A role of users and keys. */
export type Role = "viewer" | "user" | "admin" | "owner" | "operator";

/** The secret that an API key had before it was rotated, while it is valid. */
export interface PreviousSecret {
  /** Its last four characters. */
  hint: string;
  /** When it expires. */
  validUntil: Date | undefined;
  /** When this secret was used last, to half a minute; `undefined` if it was not. */
  lastUsedAt: Date | undefined;
}

/** An API key. */
export interface KeyInfo {
  /** Its ID, which is no secret. */
  keyId: string;
  /** Its purpose. */
  name: string;
  /** Its role. */
  role: Word<Role>;
  /** The permitted scopes. */
  scopes: string[];
  /** The last four characters of the secret. */
  hint: string;
  /** The user who made it, or the user's key; `undefined` for a key that was made on the server. */
  createdBy: string | undefined;
  /** The secret, in the answer to its making or rotation and never again; else `undefined`. */
  key: string | undefined;
  /** When it was made. */
  createdAt: Date | undefined;
  /** When it expires; `undefined`: never. */
  expiresAt: Date | undefined;
  /** When it was used last, to half a minute; `undefined` if it was not. */
  lastUsedAt: Date | undefined;
  /** The secret before it was rotated, while it is valid; else `undefined`. */
  previous: PreviousSecret | undefined;
}

/** Options of a new key. */
export interface KeyOptions extends CallOptions {
  /** The permitted scopes, such as `"read"` and `"write"`. Default: all of your own. */
  scopes?: readonly string[];
  /** Default: yours. */
  role?: Role;
  /** At least 1. Default: it does not expire, or with the key that makes it. */
  expiresInSeconds?: number;
}

/** Your API keys: `client.keys`. */
export class Keys {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Makes a key. Its secret is in `key`, this once: the server keeps a hash. When the connection
   * breaks, the key may exist although its secret is lost: see {@link list}.
   *
   * @param name - its purpose, 1 to 100 characters.
   * @throws {@link PermissionDeniedError} the key would have more rights than you.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   */
  async create(name: string, options: KeyOptions = {}): Promise<KeyInfo> {
    const body = {
      name,
      scopes: options.scopes as Schemas["Scope"][] | undefined,
      role: options.role,
      expires_in_seconds: options.expiresInSeconds,
    } satisfies Schemas["KeyRequest"];
    // No idempotency key: a repeat's answer lacks the secret.
    return this.#client.call(
      post("/api/v1/keys", (answer) => keyOf(answer.json()), body),
      options,
    );
  }

  /** Returns all of them, newest first, without secrets. */
  async list(options: CallOptions = {}): Promise<KeyInfo[]> {
    return this.#client.call(every(), options);
  }

  /**
   * Gives a key another secret, shown once in `key`; the previous secret ends later. A secret that
   * was never used ends at once, and the one before it stays valid.
   *
   * @param key - the key, or its ID.
   * @throws {@link NotFoundError} no such key exists.
   * @throws {@link PermissionDeniedError} the key may do more than you, or for longer.
   * @throws {@link ConflictError} it has two valid secrets already, or it has expired.
   */
  async rotate(
    key: KeyInfo | string,
    options: CallOptions & {
      /**
       * How long the previous secret stays valid, at most 30 days; 0: it ends at once. Default: a
       * day.
       */
      overlapSeconds?: number;
    } = {},
  ): Promise<KeyInfo> {
    const body = { overlap_seconds: options.overlapSeconds } satisfies Schemas["KeyRotation"];
    const path = `${pathOf(key)}/rotate`;
    return this.#client.call(
      post(path, (answer) => keyOf(answer.json()), body),
      options,
    );
  }

  /**
   * Revokes a key; several servers of one installation know within a second.
   *
   * @param key - the key, or its ID.
   * @throws {@link NotFoundError} no such key exists.
   */
  async delete(key: KeyInfo | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call(remove(pathOf(key), nothing), options);
  }
}

function pathOf(key: KeyInfo | string): string {
  return `/api/v1/keys/${segment(typeof key === "string" ? key : key.keyId, "key ID")}`;
}

function every(): Call<KeyInfo[]> {
  return get("/api/v1/keys", (answer) => answer.json<Schemas["KeyList"]>().list("keys").map(keyOf));
}

function keyOf(obj: Wire<Schemas["Key"]>): KeyInfo {
  const previous = obj.object("previous");
  return {
    keyId: obj.required("key_id"),
    name: obj.text("name"),
    role: obj.text("role"),
    scopes: obj.strings("scopes"),
    hint: obj.text("hint"),
    createdBy: obj.maybe("created_by"),
    key: obj.maybe("key"),
    createdAt: obj.time("created_at"),
    expiresAt: obj.time("expires_at"),
    lastUsedAt: obj.time("last_used_at"),
    previous: previous && {
      hint: previous.text("hint"),
      validUntil: previous.time("valid_until"),
      lastUsedAt: previous.time("last_used_at"),
    },
  };
}
