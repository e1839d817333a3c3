// Options of calls.

/** Options of every call. */
export interface CallOptions {
  /**
   * Ends the call early: it rejects with the signal's reason. The server may still finish the
   * operation, except that code and commands are ended.
   */
  signal?: AbortSignal;
}
