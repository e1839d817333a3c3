// The interpreters of a Sandbox.

import { type Answer, get, nothing, once, post, remove, segment } from "./api/call.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Client } from "./client.js";
import type { CallOptions } from "./options.js";

/** An interpreter that keeps its state from one execution to the next. */
export interface ContextInfo {
  /** Its ID within its Sandbox. */
  contextId: string;
  /** Its language. */
  language: string;
  /** The directory in which its interpreter starts. */
  cwd: string;
  /** The user of its process. */
  user: string;
  /** Code without a context runs here. */
  default: boolean;
  /** While `"stopped"` it has no interpreter, and no state; the next execution starts one. */
  state: Word<"stopped" | "idle" | "busy">;
  /** Executions so far. */
  executionCount: number;
}

/** Options of a new context. */
export interface ContextOptions extends CallOptions {
  /** The directory in which it starts. Default: `/workspace`. */
  cwd?: string;
  /** The user of its process. Default: the Sandbox's user. */
  user?: string;
  /** Make one for this key. Default: a new key. */
  idempotencyKey?: string;
}

/**
 * The interpreters of a Sandbox that keep their state: `sandbox.contexts`.
 *
 * Code without a context runs in the default one of its language, so most programs need no other. A
 * method that takes a context takes its ID too.
 */
export class Contexts {
  readonly #client: Client;
  readonly #sandboxId: string;

  /** @internal */
  constructor(client: Client, sandboxId: string) {
    this.#client = client;
    this.#sandboxId = sandboxId;
  }

  /**
   * Makes an interpreter with variables of its own; it starts when first used.
   *
   * @param language - `"python"`, `"javascript"`, `"typescript"`, `"bash"`, or `"r"` and `"java"`
   * if the Template has them.
   * @throws {@link InvalidRequestError} a language that keeps no state.
   * @throws {@link ExhaustedError} the Sandbox has 32 already.
   */
  async create(language = "python", options: ContextOptions = {}): Promise<ContextInfo> {
    const { cwd, user, idempotencyKey } = options;
    const body = {
      sandbox_id: this.#sandboxId,
      language: language as NonNullable<Schemas["ContextRequest"]["language"]>,
      cwd,
      user,
    } satisfies Schemas["ContextRequest"];
    return this.#client.call(once(post("/api/v1/contexts", one, body), idempotencyKey), options);
  }

  /** Returns all contexts, the default ones also before their first use. */
  async list(options: CallOptions = {}): Promise<ContextInfo[]> {
    const call = get(
      "/api/v1/contexts",
      (answer) => answer.json<Schemas["ContextList"]>().list("contexts").map(contextOf),
      { query: this.#target() },
    );
    return this.#client.call(call, options);
  }

  /**
   * Gives it a fresh interpreter and ends its running code.
   *
   * @throws {@link NotFoundError} the context does not exist.
   */
  async restart(context: ContextInfo | string, options: CallOptions = {}): Promise<ContextInfo> {
    const call = post(`${pathOf(context)}/restart`, one, this.#target());
    return this.#client.call(call, options);
  }

  /**
   * Ends its running code, as Ctrl-C would; its variables stay. Returns false when nothing ran.
   *
   * @throws {@link NotFoundError} the context does not exist.
   */
  async interrupt(context: ContextInfo | string, options: CallOptions = {}): Promise<boolean> {
    const call = post(
      `${pathOf(context)}/interrupt`,
      (answer) => answer.json<{ interrupted: boolean }>().flag("interrupted"),
      this.#target(),
    );
    return this.#client.call(call, options);
  }

  /**
   * Ends it and its running code. A default context is fresh at its next use.
   *
   * @throws {@link NotFoundError} the context does not exist.
   */
  async delete(context: ContextInfo | string, options: CallOptions = {}): Promise<void> {
    await this.#client.call(remove(pathOf(context), nothing, { query: this.#target() }), options);
  }

  #target() {
    return { sandbox_id: this.#sandboxId } satisfies Schemas["Target"];
  }
}

/** Returns the ID of a context. */
export function contextIdOf(context: ContextInfo | string): string {
  return typeof context === "string" ? context : context.contextId;
}

function pathOf(context: ContextInfo | string): string {
  return `/api/v1/contexts/${segment(contextIdOf(context), "context ID")}`;
}

function one(answer: Answer): ContextInfo {
  return contextOf(answer.json());
}

function contextOf(obj: Wire<Schemas["Context"]>): ContextInfo {
  return {
    contextId: obj.required("context_id"),
    language: obj.text("language"),
    cwd: obj.text("cwd"),
    user: obj.text("user"),
    default: obj.flag("default"),
    state: obj.text("state"),
    executionCount: obj.count("execution_count"),
  };
}
