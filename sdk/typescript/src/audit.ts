// The audit log.

import { type Call, get, queryOf } from "./api/call.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";
import { all, PAGE_SIZE, type Page } from "./paging.js";

/** One call in your tenant, and its outcome. */
export interface AuditEntry {
  /** When it was answered. */
  at: Date | undefined;
  /**
   * The user of the token, `"key:ID"` for an API key, `"signed-url"`, `"operator"`, or `"system"`
   * for events that no client requested.
   */
  user: string;
  /** The user's role; `undefined` for callers without one. */
  role: string | undefined;
  /** The API key that was used; `undefined` for another credential. */
  keyId: string | undefined;
  /** The operation, such as `"createSession"`. */
  operation: string;
  /** The created, changed or named resource; `undefined` without one. */
  target: string | undefined;
  /** The Sandbox of the call. */
  sandboxId: string | undefined;
  /** Details, such as the cause of an end. */
  detail: string | undefined;
  /** The address that the request came from. */
  remote: string | undefined;
  /** The `X-Request-Id` of the answer. */
  requestId: string | undefined;
  /** The HTTP status of the answer; `undefined`: there was no request. */
  status: number | undefined;
  /** The error code; `undefined` on success. */
  code: string | undefined;
  /** The outcome. */
  outcome: Word<"ok" | "denied" | "failed">;
  /** Hash of the entry and all entries before it. The operator finds the entry by it. */
  hash: string;
}

/** Which entries are asked for. */
export interface AuditOptions extends CallOptions {
  /** No entries before this time. */
  since?: Date;
  /** Only entries before this time. */
  until?: Date;
  /** Only calls of this user, or of the key with this ID. */
  actor?: string;
  /** Only this operation, such as `"createSession"`. */
  operation?: string;
  /** Only calls with this target, or about the Sandbox with this ID. */
  target?: string;
  /** Only calls with this outcome. */
  outcome?: "ok" | "denied" | "failed";
  /** How many at most. Default: all. */
  limit?: number;
}

/** The audit log of your tenant, for its admins: `client.audit`. */
export class Audit {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Returns entries, newest first.
   *
   * @throws {@link PermissionDeniedError} you are no admin, or your key lacks the scope `audit`.
   */
  async list(options: AuditOptions = {}): Promise<AuditEntry[]> {
    return all(
      (cursor, left) =>
        this.#client.call(page(options, cursor, Math.min(left, PAGE_SIZE)), options),
      options.limit,
    );
  }
}

function page(
  asked: AuditOptions,
  cursor: string | undefined,
  limit: number,
): Call<Page<AuditEntry>> {
  const query = queryOf({
    since: asked.since?.toISOString(),
    until: asked.until?.toISOString(),
    actor: asked.actor,
    operation: asked.operation,
    target: asked.target,
    outcome: asked.outcome,
    limit,
    cursor,
  });
  return get(
    "/api/v1/audit",
    (answer) => {
      const obj = answer.json<Schemas["AuditPage"]>();
      return { items: obj.list("entries").map(entryOf), next: obj.text("next_cursor") };
    },
    { query },
  );
}

function entryOf(obj: Wire<Schemas["AuditEntry"]>): AuditEntry {
  return {
    at: obj.time("at"),
    user: obj.text("user"),
    role: obj.maybe("role"),
    keyId: obj.maybe("key_id"),
    operation: obj.text("operation"),
    target: obj.maybe("target"),
    sandboxId: obj.maybe("sandbox_id"),
    detail: obj.maybe("detail"),
    remote: obj.maybe("remote"),
    requestId: obj.maybe("request_id"),
    status: obj.integer("status"),
    code: obj.maybe("code"),
    outcome: obj.text("outcome"),
    hash: obj.text("hash"),
  };
}
