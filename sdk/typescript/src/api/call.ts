// A request that knows how to read its answer.

import { encode, Wire } from "./wire.js";

/** An answer with a status of success; errors are thrown before it is decoded. */
export class Answer {
  constructor(
    readonly status: number,
    readonly headers: Headers,
    readonly content: Uint8Array,
  ) {}

  /** Returns the body as a JSON object; anything else is a ProtocolError. */
  json<T>(): Wire<T> {
    return Wire.parse<T>(this.content);
  }
}

/** A body that is sent as it is read. */
export interface Stream {
  /** It can be sent again from its beginning. */
  replayable: boolean;
  /** Begins, at its beginning if it is replayable. */
  open(): AsyncIterable<Uint8Array>;
}

/** The body of a request. */
export type Body = Uint8Array<ArrayBuffer> | Blob | Stream;

/** Whether a body is sent as it is read. */
export function isStream(body: Body | undefined): body is Stream {
  return body !== undefined && !(body instanceof Uint8Array) && !(body instanceof Blob);
}

/** One HTTP request and how to read its answer. */
export interface Call<T> {
  method: string;
  /** Below the server's address. */
  path: string;
  /** Turns the answer into the caller's result. */
  decode: (answer: Answer) => T;
  query: Record<string, string>;
  body?: Body;
  /** Headers beside the transport's own. */
  headers: Record<string, string>;
  /** How long the server may be silent. */
  readSeconds: number;
  /** Doing it twice is the same as doing it once. */
  repeatable: boolean;
  /**
   * It carries an idempotency key: while the first request is still running, a repeat is answered
   * with a temporary conflict.
   */
  keyed: boolean;
  /** It carries the caller's token. */
  authenticated: boolean;
}

/** How long the server may be silent, in seconds, beyond the duration of the operation. */
export const READ_SECONDS = 60;
const MAX_KEY = 255;

type Options = Partial<Omit<Call<unknown>, "method" | "path" | "decode">>;

/** Makes a request. */
export function request<T>(
  method: string,
  path: string,
  decode: (answer: Answer) => T,
  options: Options = {},
): Call<T> {
  return {
    method,
    path,
    decode,
    query: {},
    headers: {},
    readSeconds: READ_SECONDS,
    repeatable: false,
    keyed: false,
    authenticated: true,
    ...options,
  };
}

/** Makes a request that changes nothing. */
export function get<T>(
  path: string,
  decode: (answer: Answer) => T,
  options: Options = {},
): Call<T> {
  return request("GET", path, decode, { repeatable: true, ...options });
}

/** Makes a request with a JSON body, without its undefined fields. */
export function post<T, B extends object>(
  path: string,
  decode: (answer: Answer) => T,
  body: B,
  options: Options & { method?: string } = {},
): Call<T> {
  const { method, ...rest } = options;
  return request(method ?? "POST", path, decode, {
    ...rest,
    body: encode(JSON.stringify(body)),
    headers: { "Content-Type": "application/json", ...rest.headers },
  });
}

/** Makes a request that removes something. */
export function remove<T>(
  path: string,
  decode: (answer: Answer) => T,
  options: Options = {},
): Call<T> {
  return request("DELETE", path, decode, { repeatable: true, ...options });
}

/**
 * Has a request take effect once for a key, so that it may be repeated. Default: a new key. Throws
 * a TypeError when no header can hold the key.
 */
export function once<T>(call: Call<T>, key: string | undefined): Call<T> {
  const used = key ?? newKey();
  if (used.length > MAX_KEY || !/^[\x21-\x7e]+$/.test(used)) {
    throw new TypeError(`idempotencyKey must be 1 to ${MAX_KEY} visible ASCII characters`);
  }
  return {
    ...call,
    headers: { ...call.headers, "Idempotency-Key": used },
    repeatable: true,
    keyed: true,
  };
}

/** Returns a new idempotency key. */
export function newKey(): string {
  // Pages that came over plain HTTP have no randomUUID.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Decodes an answer without content. */
export function nothing(_: Answer): void {}

/** Returns the body as it is. */
export function content(answer: Answer): Uint8Array {
  return answer.content;
}

/**
 * Writes an ID or a name as one segment of a path. Throws a TypeError when it would make another
 * path.
 */
export function segment(value: string, name: string): string {
  if (!value) throw new TypeError(`the ${name} is empty`);
  // A dot segment is resolved away, however it is written.
  if (value === "." || value === "..") throw new TypeError(`there is no ${name} ${value}`);
  return encodeURIComponent(value).replace(/%(3A|40)/g, (code) => decodeURIComponent(code));
}

/** Returns the query parameters that have a value. */
export function queryOf(
  values: Record<string, string | number | boolean | undefined>,
): Record<string, string> {
  const found: Record<string, string> = {};
  for (const [name, value] of Object.entries(values)) {
    // An absent parameter means false.
    if (value !== undefined && value !== false) found[name] = String(value);
  }
  return found;
}

/** Leaves out false: an absent field means false. */
export function whenTrue(value: boolean | undefined): true | undefined {
  return value ? true : undefined;
}
