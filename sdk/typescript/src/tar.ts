// Tar archives, written piece by piece.

import { encode } from "./api/wire.js";

const BLOCK_BYTES = 512;
const NAME_BYTES = 100;
// The largest number that the eleven octal digits of a header hold.
const MAX_OCTAL = 8 ** 11 - 1;

/** One member of an archive. */
export interface Member {
  /** Its path, with slashes. */
  name: string;
  /** Its type. Default: a file. */
  type?: "file" | "directory" | "symlink";
  /** Length of a file. */
  size?: number;
  /** Permissions. */
  mode: number;
  /** Owner and group. Default: 0. */
  owner?: number;
  /** The target of a link. */
  target?: string;
  /** Seconds since 1970. Default: 0. */
  modified?: number;
}

/** Ends an archive. */
export const ARCHIVE_END: Uint8Array<ArrayBuffer> = new Uint8Array(2 * BLOCK_BYTES);

const TYPES = { file: "0", directory: "5", symlink: "2" };

/** Returns the header of a member. */
export function tarHeader(member: Member): Uint8Array<ArrayBuffer> {
  const { size = 0, target = "" } = member;
  const name = member.type === "directory" ? `${member.name}/` : member.name;
  let records = "";
  if (!fits(name)) records += record("path", name);
  if (!fits(target)) records += record("linkpath", target);
  if (size > MAX_OCTAL) records += record("size", String(size));
  const own = block(name, TYPES[member.type ?? "file"], Math.min(size, MAX_OCTAL), member);
  if (!records) return own;
  const text = encode(records);
  const head = block("PaxHeader", "x", text.length, { name: "", mode: 0o644 });
  const padded = new Uint8Array(text.length + padding(text.length));
  padded.set(text);
  const all = new Uint8Array(head.length + padded.length + own.length);
  all.set(head);
  all.set(padded, head.length);
  all.set(own, head.length + padded.length);
  return all;
}

/** Returns how many zeros follow so many bytes of content. */
export function padding(size: number): number {
  return (BLOCK_BYTES - (size % BLOCK_BYTES)) % BLOCK_BYTES;
}

function fits(text: string): boolean {
  return text.length <= NAME_BYTES && /^[\x20-\x7e]*$/.test(text);
}

/** Writes a record of an extended header, whose length counts itself. */
function record(key: string, value: string): string {
  const rest = encode(` ${key}=${value}\n`).length;
  let length = rest;
  while (String(length).length + rest !== length) length = String(length).length + rest;
  return `${length} ${key}=${value}\n`;
}

function block(name: string, type: string, size: number, member: Member): Uint8Array<ArrayBuffer> {
  const data = new Uint8Array(BLOCK_BYTES);
  const put = (at: number, length: number, text: string) =>
    data.set(encode(text).subarray(0, length), at);
  const number = (at: number, length: number, value: number) =>
    put(at, length, `${value.toString(8).padStart(length - 1, "0")}\0`);
  put(0, NAME_BYTES, name);
  number(100, 8, member.mode & 0o7777);
  number(108, 8, member.owner ?? 0);
  number(116, 8, member.owner ?? 0);
  number(124, 12, size);
  number(136, 12, Math.max(0, Math.floor(member.modified ?? 0)));
  put(148, 8, " ".repeat(8));
  put(156, 1, type);
  put(157, NAME_BYTES, member.target ?? "");
  put(257, 8, "ustar\x0000");
  const sum = data.reduce((total, byte) => total + byte, 0);
  put(148, 8, `${sum.toString(8).padStart(6, "0")}\0 `);
  return data;
}
