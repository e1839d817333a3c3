/** Time and chance, in one place, so that tests can decide about both. */
export const clock = {
  /** Seconds that only grow. */
  now: (): number => performance.now() / 1000,
  /** A number in [0, 1), which keeps clients apart. */
  random: (): number => Math.random(),
  /** Waits for so many seconds, or rejects with the reason of a signal that is aborted. */
  sleep: (seconds: number, signal?: AbortSignal): Promise<void> =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const stop = () => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(() => {
        signal?.removeEventListener("abort", stop);
        resolve();
      }, seconds * 1000);
      signal?.addEventListener("abort", stop, { once: true });
    }),
};

/** Waits for a promise, or rejects with the reason of a signal that is aborted. */
export async function unlessAborted<T>(
  promise: Promise<T>,
  signal: AbortSignal | undefined,
): Promise<T> {
  if (!signal) return promise;
  signal.throwIfAborted();
  let stop = () => {};
  const aborted = new Promise<never>((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}
