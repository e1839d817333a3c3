// Reading JSON objects with care: a field of another type is a ProtocolError.
//
// A field that is absent or null has its default, and unknown fields are left alone, so that this
// version works with older and newer servers. The names of fields are checked against the contract
// when this is compiled.

import { ProtocolError } from "../errors.js";
import type { components } from "./schema.js";

/** The objects of the contract. */
export type Schemas = components["schemas"];

/** Known words, or another one of a newer server. */
export type Word<T extends string> = T | (string & Record<never, never>);

type Field<T> = T extends unknown ? keyof T & string : never;
type At<T, K> = T extends unknown ? (K extends keyof T ? NonNullable<T[K]> : never) : never;
type Item<T> = T extends readonly (infer I)[] ? I : never;

// RFC 3339 with any number of digits after the seconds; a Date has three.
const TIME = /^(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|z|[+-]\d\d:\d\d)$/;

/** A JSON object that is said to be a T. */
export class Wire<T> {
  readonly #raw: Record<string, unknown>;

  constructor(raw: Record<string, unknown>) {
    this.#raw = raw;
  }

  /** Decodes a JSON object; anything else is a ProtocolError. */
  static parse<T>(content: Uint8Array | string): Wire<T> {
    let value: unknown;
    try {
      value = JSON.parse(typeof content === "string" ? content : strict.decode(content));
    } catch (err) {
      throw new ProtocolError("the server's answer is not JSON", { cause: err });
    }
    return new Wire<T>(asObject(value, "the answer"));
  }

  /** Returns a value as it is. */
  raw(key: Field<T>): unknown {
    return this.#raw[key] ?? undefined;
  }

  /** Returns a string; empty if absent. */
  text(key: Field<T>): string {
    return this.maybe(key) ?? "";
  }

  /** Returns a required string, which must not be empty. */
  required(key: Field<T>): string {
    const value = this.text(key);
    if (!value) throw new ProtocolError(`the server's answer has no ${JSON.stringify(key)}`);
    return value;
  }

  /** Returns a string, or undefined. */
  maybe(key: Field<T>): string | undefined {
    const value = this.raw(key);
    if (value !== undefined && typeof value !== "string") throw wrong(key, "a string");
    return value;
  }

  /** Returns the bytes of a string in base64, or undefined. */
  bytes(key: Field<T>): Uint8Array | undefined {
    const value = this.maybe(key);
    if (value === undefined) return undefined;
    try {
      return fromBase64(value.replace(/\s+/g, "")); // programs print it with line ends
    } catch {
      throw wrong(key, "base64");
    }
  }

  /** Returns a boolean; false if absent. */
  flag(key: Field<T>): boolean {
    const value = this.raw(key) ?? false;
    if (typeof value !== "boolean") throw wrong(key, "true or false");
    return value;
  }

  /** Returns a number, or undefined. */
  number(key: Field<T>): number | undefined {
    const value = this.raw(key);
    if (value !== undefined && typeof value !== "number") throw wrong(key, "a number");
    return value;
  }

  /** Returns a whole number, or undefined. */
  integer(key: Field<T>): number | undefined {
    const value = this.number(key);
    if (value !== undefined && !Number.isInteger(value)) throw wrong(key, "a whole number");
    return value;
  }

  /** Returns a whole number; 0 if absent. */
  count(key: Field<T>): number {
    return this.integer(key) ?? 0;
  }

  /** Returns an object, or undefined. */
  object<K extends Field<T>>(key: K): Wire<At<T, K>> | undefined {
    const value = this.raw(key);
    return value === undefined ? undefined : new Wire<At<T, K>>(asObject(value, key));
  }

  /** Returns a list of objects; empty if absent. */
  list<K extends Field<T>>(key: K): Wire<Item<At<T, K>>>[] {
    return this.#items(key, "a list").map((item) => new Wire<Item<At<T, K>>>(asObject(item, key)));
  }

  /** Returns a list of strings; empty if absent. */
  strings(key: Field<T>): string[] {
    const isString = (item: unknown): item is string => typeof item === "string";
    const items = this.#items(key, "a list of strings");
    if (!items.every(isString)) throw wrong(key, "a list of strings");
    return items;
  }

  /** Returns a list of whole numbers; empty if absent. */
  integers(key: Field<T>): number[] {
    const items = this.#items(key, "a list of whole numbers");
    if (!items.every(Number.isInteger)) throw wrong(key, "a list of whole numbers");
    return items as number[];
  }

  /** Returns a map of strings; empty if absent. */
  texts(key: Field<T>): Record<string, string> {
    const value = this.raw(key);
    return value === undefined ? {} : textsOf(asObject(value, key));
  }

  /** Returns this object as a map of strings. */
  allTexts(): Record<string, string> {
    return textsOf(this.#raw);
  }

  /** Returns a map of whole numbers; empty if absent. */
  counts(key: Field<T>): Record<string, number> {
    const value = asObject(this.raw(key) ?? {}, key);
    const inside = new Wire<Record<string, number>>(value);
    return Object.fromEntries(Object.keys(value).map((name) => [name, inside.count(name)]));
  }

  /** Returns an RFC 3339 time, to the millisecond, or undefined. */
  time(key: Field<T>): Date | undefined {
    const value = this.text(key);
    if (!value) return undefined;
    const match = TIME.exec(value);
    if (!match) throw wrong(key, "a time");
    const [, day, clock, fraction, zone] = match;
    const millis = (fraction ?? "").slice(0, 3).padEnd(3, "0");
    const at = new Date(`${day}T${clock}.${millis}${zone?.toUpperCase()}`);
    if (Number.isNaN(at.getTime()) || at.getUTCFullYear() < 1) throw wrong(key, "a time");
    return at;
  }

  #items(key: Field<T>, want: string): unknown[] {
    const value = this.raw(key) ?? [];
    if (!Array.isArray(value)) throw wrong(key, want);
    return value;
  }
}

/** Returns a header that is a whole number; 0 if absent. */
export function headerInteger(headers: Headers, name: string): number {
  const value = headers.get(name);
  if (value === null) return 0;
  if (!/^\d+$/.test(value)) throw wrong(name, "a whole number");
  return Number(value);
}

const strict = new TextDecoder("utf-8", { fatal: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();

/** Writes text as UTF-8. */
export function encode(text: string): Uint8Array<ArrayBuffer> {
  return encoder.encode(text) as Uint8Array<ArrayBuffer>;
}

/** Reads UTF-8; invalid bytes become U+FFFD. */
export function decode(data: Uint8Array): string {
  return lenient.decode(data);
}

/** Writes bytes in base64. */
export function toBase64(data: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < data.length; at += 0x8000) {
    binary += String.fromCharCode(...data.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}

function fromBase64(text: string): Uint8Array {
  const binary = atob(text);
  const data = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) data[at] = binary.charCodeAt(at);
  return data;
}

function textsOf(value: Record<string, unknown>): Record<string, string> {
  const found: [string, string][] = Object.entries(value).map(([name, text]) => {
    if (text !== null && text !== undefined && typeof text !== "string")
      throw wrong(name, "a string");
    return [name, text ?? ""];
  });
  return Object.fromEntries(found);
}

function asObject(value: unknown, name: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw wrong(name, "an object");
  }
  return value as Record<string, unknown>;
}

function wrong(name: string, want: string): ProtocolError {
  return new ProtocolError(`the server's answer has a ${JSON.stringify(name)} that is not ${want}`);
}
