// When to try again, and after how long. A pure rule, the same for every transport.

/** How often a call is tried again where that is safe. */
export const MAX_RETRIES = 3;
/** A server that asks for more patience than this, in all, is left to the caller. */
export const MAX_WAIT_SECONDS = 120;
const BASE_SECONDS = 0.1;
const CAP_SECONDS = 2;
const PATIENT_SECONDS = 10;

/**
 * How a try failed.
 *
 * - `not_sent`: no connection, so the server saw nothing.
 * - `lost`: the connection broke; the server may have acted.
 * - `turned_away`: 429 or 503. With advice when to come back, the request did nothing.
 * - `under_way`: the request of an earlier try still runs.
 */
export type Failure = "not_sent" | "lost" | "turned_away" | "under_way";

/** The facts that decide about another try. */
export interface Try {
  /** 1 for the first retry. */
  retry: number;
  /** How the last try failed. */
  failure: Failure;
  /** Doing the request twice is the same as doing it once. */
  repeatable: boolean;
  /** The body can be sent again from its beginning. */
  replayable: boolean;
  /** The server's advice in seconds, if it gave any. */
  retryAfter: number | undefined;
  /** A random number in [0, 1). */
  chance: number;
  /** The seconds that were waited before, as the server asked. */
  waited?: number;
  /** Give up after this many. */
  maxRetries?: number;
}

/** Returns the seconds to wait before a retry, or undefined to give up. */
export function waitBefore(attempt: Try): number | undefined {
  const { retry, failure, repeatable, replayable, retryAfter, chance } = attempt;
  const waited = attempt.waited ?? 0;
  if (retry > (attempt.maxRetries ?? MAX_RETRIES)) return undefined;
  if (failure === "not_sent") return backoff(retry, chance);
  if (!replayable) return undefined;
  if ((failure === "turned_away" || failure === "under_way") && retryAfter !== undefined) {
    // Never earlier than advised, and later the longer the wait has been.
    const pause = Math.max(retryAfter, Math.min(waited / 4, PATIENT_SECONDS));
    if (waited + pause > MAX_WAIT_SECONDS) return undefined;
    return pause + chance * Math.max(BASE_SECONDS, pause / 10); // not all at the same moment
  }
  return repeatable ? backoff(retry, chance) : undefined;
}

/** Returns a pause in seconds that grows with each retry, up to two. */
export function backoff(retry: number, chance: number): number {
  const ceiling = Math.min(CAP_SECONDS, BASE_SECONDS * 2 ** Math.min(retry - 1, 16));
  return ceiling * (0.5 + chance / 2);
}
