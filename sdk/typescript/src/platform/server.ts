// Node, Bun and Deno.

import { VERSION } from "../version.js";
import type { Platform } from "./platform.js";

interface Dispatcher {
  constructor: new (options: object) => object;
}

// The global name of the dispatcher of Node's fetch and of undici.
const DISPATCHER = Symbol.for("undici.globalDispatcher.1");
let dispatcher: object | undefined;
let asked = false;

/**
 * Node's fetch gives up after five minutes without an answer, but code may run for an hour. This
 * dispatcher has no such limit, because each call has its own. A dispatcher that the program has
 * set, such as for a proxy, stays in use.
 */
function patientDispatcher(): object | undefined {
  if (asked) return dispatcher;
  asked = true;
  void globalThis.Headers; // Node loads fetch when one of its names is first used
  const current = (globalThis as Record<symbol, unknown>)[DISPATCHER] as Dispatcher | undefined;
  if (current?.constructor.name === "Agent") {
    dispatcher = new current.constructor({ headersTimeout: 0, bodyTimeout: 0 });
  }
  return dispatcher;
}

const isNode = !("Bun" in globalThis) && !("Deno" in globalThis);
const isBun = "Bun" in globalThis;

// Error codes before a byte of a request is sent.
const NEVER_SENT = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ETIMEDOUT",
  "UND_ERR_CONNECT_TIMEOUT",
  // Bun's words.
  "ConnectionRefused",
  "FailedToOpenSocket",
  "DNSLookupFailed",
]);

/** The platform of Node, Bun and Deno. */
export const platform: Platform = {
  env: (name) => globalThis.process?.env[name],
  origin: undefined,
  streamsUploads: true,
  headers: { "User-Agent": `cloud-sandbox-typescript/${VERSION}` },
  fetchOptions() {
    if (isNode) {
      const found = patientDispatcher();
      return found ? { dispatcher: found } : {};
    }
    return isBun ? { timeout: false } : {};
  },
  neverSent(err) {
    const cause = (err as { cause?: unknown }).cause ?? err;
    if (NEVER_SENT.has((cause as { code?: string }).code ?? "")) return true;
    // Deno says it in words alone.
    return err instanceof TypeError && /client error \(Connect\)/.test(err.message);
  },
  async webSocket() {
    if (typeof WebSocket !== "undefined") return WebSocket;
    return (await import("ws")).WebSocket as unknown as typeof WebSocket;
  },
  async readDockerfile(dockerfile, context) {
    return (await import("./dockerfile.js")).readDockerfile(dockerfile, context);
  },
};
