// Dockerfiles and the folders that they copy from.

import { lstat, open, readdir, readFile, readlink, stat } from "node:fs/promises";
import { basename, dirname, join, posix } from "node:path";
import type { Body } from "../api/call.js";
import { ARCHIVE_END, padding, tarHeader } from "../tar.js";
import type { Recipe } from "./platform.js";

const IGNORE_FILE = ".dockerignore";
const COPIES = /^\s*(COPY|ADD)\s/im;
const PIECE_BYTES = 256 << 10;

/** Reads a Dockerfile, and prepares its context: by default the folder that it is in. */
export async function readDockerfile(
  dockerfile: string,
  context: string | undefined,
): Promise<Recipe> {
  const text = await readFile(dockerfile, "utf8");
  if (!COPIES.test(text)) return { text, archive: undefined };
  const folder = context ?? dirname(dockerfile);
  if (!(await stat(folder)).isDirectory()) {
    throw new TypeError(`the build context ${JSON.stringify(folder)} is not a folder`);
  }
  const beside = join(dirname(dockerfile), basename(dockerfile) + IGNORE_FILE);
  const ignoring = (await contentOf(beside)) ?? (await contentOf(join(folder, IGNORE_FILE)));
  return { text, archive: packed(folder, ignoring ?? new Uint8Array()) };
}

async function contentOf(path: string): Promise<Uint8Array | undefined> {
  try {
    return await readFile(path);
  } catch (err) {
    const code = (err as NodeJS.ErrnoException).code;
    if (code === "ENOENT" || code === "EISDIR") return undefined;
    throw err;
  }
}

function packed(folder: string, ignoring: Uint8Array): Body {
  const ignored = new Ignored(new TextDecoder().decode(ignoring));
  return {
    replayable: true,
    async *open() {
      // The server leaves out the same, so that one client is like another.
      yield tarHeader({ name: IGNORE_FILE, size: ignoring.length, mode: 0o644 });
      yield ignoring;
      yield new Uint8Array(padding(ignoring.length));
      for await (const { path, name } of below(folder, "", ignored)) {
        if (name !== IGNORE_FILE) yield* entry(path, name);
      }
      yield ARCHIVE_END;
    },
  };
}

async function* entry(path: string, name: string): AsyncGenerator<Uint8Array> {
  const info = await lstat(path);
  const common = { name, mode: info.mode, modified: info.mtimeMs / 1000 };
  if (info.isDirectory()) yield tarHeader({ ...common, type: "directory" });
  else if (info.isSymbolicLink()) {
    yield tarHeader({ ...common, type: "symlink", target: await readlink(path) });
  } else if (info.isFile()) {
    yield tarHeader({ ...common, size: info.size });
    yield* bytesOf(path, info.size);
    yield new Uint8Array(padding(info.size));
  } // else a device, a pipe or a socket
}

async function* bytesOf(path: string, size: number): AsyncGenerator<Uint8Array> {
  const file = await open(path);
  try {
    for (let left = size; left > 0; ) {
      const piece = new Uint8Array(Math.min(left, PIECE_BYTES));
      const { bytesRead } = await file.read(piece, 0, piece.length);
      if (bytesRead === 0) throw new Error(`${path} became shorter while it was read: try again`);
      left -= bytesRead;
      yield piece.subarray(0, bytesRead);
    }
  } finally {
    await file.close();
  }
}

/** Yields the content of a folder, each folder before its own content. Links are not followed. */
async function* below(
  folder: string,
  prefix: string,
  ignored: Ignored,
): AsyncGenerator<{ path: string; name: string }> {
  const entries = await readdir(folder, { withFileTypes: true });
  for (const found of entries.sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const name = prefix + found.name;
    const path = join(folder, found.name);
    const out = ignored.has(name);
    if (!out) yield { path, name };
    // An exception may be in a folder that is left out.
    if (found.isDirectory() && !(out && ignored.whole)) yield* below(path, `${name}/`, ignored);
  }
}

/** The paths that a .dockerignore leaves out. */
export class Ignored {
  /** All of a folder is left out that is left out itself. */
  readonly whole: boolean;
  readonly #rules: { excepted: boolean; rule: RegExp }[] = [];

  constructor(text: string) {
    for (const line of text.replace(/^\ufeff/, "").split(/\r\n|\r|\n/)) {
      if (!line.trim() || line.startsWith("#")) continue;
      const excepted = line.trim().startsWith("!");
      const pattern = line.trim().replace(/^!/, "").trim();
      const normal = posix.normalize(pattern).replace(/^\/+|\/+$/g, "");
      if (pattern && normal && normal !== ".") {
        this.#rules.push({ excepted, rule: new RegExp(`^(?:${expression(normal)})$`, "su") });
      }
    }
    this.whole = !this.#rules.some(({ excepted }) => excepted);
  }

  /** Whether a path, with slashes, is left out. */
  has(name: string): boolean {
    const parts = name.split("/");
    const paths = parts.map((_, at) => parts.slice(0, at + 1).join("/"));
    let out = false;
    for (const { excepted, rule } of this.#rules) {
      if (excepted === out && paths.some((path) => rule.test(path))) out = !excepted;
    }
    return out;
  }
}

/** Translates a pattern as Docker does. */
function expression(pattern: string): string {
  let out = "";
  for (let at = 0; at < pattern.length; at++) {
    const char = pattern[at] ?? "";
    if (char === "*" && pattern[at + 1] === "*") {
      at++;
      if (pattern[at + 1] === "/") at++;
      out += at === pattern.length - 1 ? ".*" : "(.*/)?";
    } else if (char === "*") out += "[^/]*";
    else if (char === "?") out += "[^/]";
    else if (char === "\\" && at + 1 < pattern.length) out += literal(pattern[++at] ?? "");
    else if (char === "[" || char === "]") out += char;
    else out += literal(char);
  }
  return out;
}

function literal(char: string): string {
  return char.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");
}
