// Some browsers do not have the symbol yet. Polyfills define it by this name.
/** The method that `await using` calls. */
export const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
