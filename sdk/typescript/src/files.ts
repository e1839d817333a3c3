// The files of a Sandbox.

import {
  type Answer,
  type Body,
  content,
  get,
  newKey,
  nothing,
  post,
  queryOf,
  remove,
  request,
  whenTrue,
} from "./api/call.js";
import * as failures from "./api/failures.js";
import { decode, encode, type Schemas, toBase64, Wire } from "./api/wire.js";
import type { Client } from "./client.js";
import { bodyOf, type Data, joined } from "./data.js";
import { ConflictError, NotFoundError } from "./errors.js";
import {
  type ArchiveFormat,
  type BatchResult,
  type CopyResult,
  changeOf,
  type ExtractResult,
  entryOf,
  type FileChanges,
  type FileEntry,
  type FileList,
  type FileOperation,
  type FileOutcome,
  type ReplaceResult,
  type SearchMatch,
  type SearchResult,
  type SignedURL,
} from "./filemodels.js";
import type { CallOptions } from "./options.js";
import { isOver, look } from "./session.js";
import { ByteStream } from "./streams.js";
import { FileWatch, type WatchOptions } from "./watching.js";

/** The form of a file's content: text (UTF-8), all bytes, or a {@link ByteStream}. */
export type ReadFormat = "text" | "bytes" | "stream";

/** The acting user. */
export interface ActingOptions extends CallOptions {
  /** With whose rights. Default: the Sandbox's user, and `"root"` may do everything. */
  user?: string;
}

/** Which part of a file is read. */
export interface ReadOptions extends CallOptions {
  /** The first byte; below 0, that many bytes from the end. Default: 0. */
  start?: number;
  /** How many bytes at most. Default: to the end. */
  length?: number;
}

/** The choice of files. */
interface Choice extends ActingOptions {
  /** Capital and small letters are the same. */
  ignoreCase?: boolean;
  /**
   * Names such as `*.py` or paths such as `src/**` and `lib/*.ts`. One must match; one that begins
   * with `!` excludes.
   */
  globs?: readonly string[];
  /** Also names that begin with a dot. */
  hidden?: boolean;
  /** Also files that `.gitignore` and `.ignore` exclude. */
  noIgnore?: boolean;
}

/** Options of a search. */
export interface SearchOptions extends Choice {
  /** A folder or one file. Default: `/workspace`. */
  path?: string;
  /** The pattern is plain text. */
  literal?: boolean;
  /** Only whole words. */
  word?: boolean;
  /** Each file that matches once, without lines. */
  filesOnly?: boolean;
  /** Up to 10,000 lines or files. Default: 100. */
  maxResults?: number;
  /** Lines before and after each match, up to 20. */
  contextLines?: number;
}

/** How text is replaced. */
export interface ReplaceOptions extends Choice {
  /**
   * The pattern is a regular expression (RE2), and `$1` or `${name}` in the replacement a group of
   * it.
   */
  regex?: boolean;
  /** How many occurrences there must be; with another number nothing is changed. */
  expectedCount?: number;
  /** Change nothing, only count. */
  dryRun?: boolean;
}

const PATH = "/api/v1/files";
// A search ends after half a minute by itself; copies and archives of many files take their time
// before the first byte comes.
const SLOW_SECONDS = 300;
const BINARY = { "Content-Type": "application/octet-stream" };

/**
 * The files of a Sandbox: `sandbox.files`.
 *
 * Paths are inside the Sandbox; one that is not absolute is below `/workspace`. Methods that take a
 * `user` act with that user's rights; default: the Sandbox's user, and `"root"` may do everything.
 */
export class Files {
  readonly #client: Client;
  readonly #sandboxId: string;

  /** @internal */
  constructor(client: Client, sandboxId: string) {
    this.#client = client;
    this.#sandboxId = sandboxId;
  }

  /**
   * Writes a file; folders above it are made, an old file is replaced.
   *
   * @param path - where in the Sandbox.
   * @param data - see {@link Data}.
   * @throws {@link ConflictError} the path is a folder.
   * @throws {@link TooLargeError} the server does not take that much.
   */
  async write(path: string, data: Data, options: CallOptions = {}): Promise<FileEntry> {
    const call = request("PUT", PATH, one, {
      query: this.#at({ path }),
      body: bodyOf(data),
      headers: BINARY,
      readSeconds: SLOW_SECONDS,
      repeatable: true,
    });
    return this.#client.call(call, options);
  }

  /**
   * Reads a file, or a part of it.
   *
   * @param path - where in the Sandbox.
   * @throws {@link NotFoundError} no such file exists.
   * @throws {@link InvalidRequestError} it is a folder, or is shorter than `start`.
   * @throws TypeError it is not UTF-8, and read as text.
   */
  async read(path: string, options?: ReadOptions & { format?: "text" }): Promise<string>;
  async read(path: string, options: ReadOptions & { format: "bytes" }): Promise<Uint8Array>;
  async read(path: string, options: ReadOptions & { format: "stream" }): Promise<ByteStream>;
  async read(
    path: string,
    options: ReadOptions & { format?: ReadFormat } = {},
  ): Promise<string | Uint8Array | ByteStream> {
    const { format = "text", start, length } = options;
    if (format !== "text" && format !== "bytes" && format !== "stream") {
      throw new TypeError(
        `format must be "text", "bytes" or "stream", not ${JSON.stringify(format)}`,
      );
    }
    const call = get(PATH, content, { query: this.#at({ path }), headers: range(start, length) });
    if (format === "stream") return new ByteStream(await this.#client.open(call, options));
    const bytes = await this.#client.call(call, options);
    if (format === "bytes") return bytes;
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  }

  /**
   * Returns the content of a folder.
   *
   * @param path - the folder.
   * @throws {@link NotFoundError} no such folder exists.
   */
  async list(
    path = "/workspace",
    options: CallOptions & {
      /** How many levels to list; 1 is the folder itself alone. At most 32. Default: 1. */
      depth?: number;
    } = {},
  ): Promise<FileList> {
    const depth = options.depth === 1 ? undefined : options.depth;
    const call = get(`${PATH}/list`, listed, { query: this.#at({ path, depth }) });
    return this.#client.call(call, options);
  }

  /**
   * Returns the properties of a file, a folder, or a link itself.
   *
   * @throws {@link NotFoundError} the path does not exist.
   */
  async stat(path: string, options: CallOptions = {}): Promise<FileEntry> {
    return this.#client.call(get(`${PATH}/stat`, one, { query: this.#at({ path }) }), options);
  }

  /**
   * Returns whether a path exists.
   *
   * @throws {@link NotFoundError} the Sandbox itself is gone.
   */
  async exists(path: string, options: CallOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, options);
    } catch (err) {
      if (!(err instanceof NotFoundError)) throw err;
      if (isOver(await this.#client.call(look(this.#sandboxId), options))) throw err;
      return false;
    }
    return true;
  }

  /**
   * Makes a folder and those above it.
   *
   * @param path - where in the Sandbox.
   * @throws {@link ConflictError} the path exists already.
   */
  async makeDir(
    path: string,
    options: CallOptions & {
      /** Accept a folder that exists already. */
      existOk?: boolean;
    } = {},
  ): Promise<FileEntry> {
    const body = { sandbox_id: this.#sandboxId, path } satisfies Schemas["MakeDirRequest"];
    try {
      return await this.#client.call(post(`${PATH}/mkdir`, one, body), options);
    } catch (err) {
      if (!(err instanceof ConflictError && options.existOk)) throw err;
      const entry = await this.stat(path, options);
      if (entry.isDir) return entry;
      throw err;
    }
  }

  /**
   * Moves or renames a file or a folder.
   *
   * @throws {@link NotFoundError} `source` does not exist.
   */
  async move(source: string, destination: string, options: CallOptions = {}): Promise<FileEntry> {
    const body = { sandbox_id: this.#sandboxId, source, destination };
    const call = post(`${PATH}/move`, one, body satisfies Schemas["MoveRequest"]);
    return this.#client.call(call, options);
  }

  /**
   * Copies a file or a folder. Permissions and links are kept as they are.
   *
   * @param source - what to copy.
   * @param destination - the copy itself, not the folder for it; missing folders above it are made.
   * @throws {@link NotFoundError} `source` does not exist.
   * @throws {@link ConflictError} `destination` exists already.
   */
  async copy(
    source: string,
    destination: string,
    options: ActingOptions & {
      /** Needed for a folder. */
      recursive?: boolean;
      /** Replace files that exist, and merge folders. */
      overwrite?: boolean;
    } = {},
  ): Promise<CopyResult> {
    const body = {
      sandbox_id: this.#sandboxId,
      source,
      destination,
      recursive: whenTrue(options.recursive),
      overwrite: whenTrue(options.overwrite),
      user: options.user,
    } satisfies Schemas["CopyRequest"];
    const call = post(`${PATH}/copy`, copied, body, { readSeconds: SLOW_SECONDS });
    return this.#client.call(call, options);
  }

  /**
   * Changes permissions and returns how many files and folders changed.
   *
   * @param path - what to change; a link is followed.
   * @param mode - a number such as `0o755`, or octal text such as `"755"`.
   * @throws {@link NotFoundError} the path does not exist.
   */
  async chmod(
    path: string,
    mode: number | string,
    options: ActingOptions & {
      /** All below a folder too; links there are left alone. */
      recursive?: boolean;
    } = {},
  ): Promise<number> {
    const body = {
      sandbox_id: this.#sandboxId,
      path,
      mode: octal(mode),
      recursive: whenTrue(options.recursive),
      user: options.user,
    } satisfies Schemas["ChmodRequest"];
    const changed = (answer: Answer) => answer.json<Schemas["ChmodResult"]>().count("changed");
    return this.#client.call(post(`${PATH}/chmod`, changed, body, { repeatable: true }), options);
  }

  /**
   * Looks for lines in files with the rules of ripgrep, or for files by name.
   *
   * Skips hidden files, binary files, links, and files that `.gitignore` and `.ignore` exclude. A
   * search of more than 30 seconds ends with its matches so far, `truncated`.
   *
   * @param pattern - a regular expression (RE2). Without one, files are found by name.
   * @throws {@link InvalidRequestError} the pattern or a glob cannot be read.
   * @throws {@link NotFoundError} the path does not exist.
   */
  async search(pattern?: string, options: SearchOptions = {}): Promise<SearchResult> {
    const body = {
      sandbox_id: this.#sandboxId,
      path: options.path,
      pattern,
      literal: whenTrue(options.literal),
      word: whenTrue(options.word),
      files_only: whenTrue(options.filesOnly),
      ...chosen(options),
      max_results: options.maxResults,
      context_lines: options.contextLines,
    } satisfies Schemas["SearchRequest"];
    const call = post(`${PATH}/search`, found, body, {
      readSeconds: SLOW_SECONDS,
      repeatable: true,
    });
    return this.#client.call(call, options);
  }

  /**
   * Replaces text in a file or below a folder. Each file has its old content or its new, never a
   * part. Files of more than 16 MiB are skipped and counted.
   *
   * @param path - a file, or a folder in which files are chosen as by {@link search}.
   * @param pattern - the text, which may have several lines.
   * @param replacement - the new text.
   * @throws {@link ConflictError} another number than `expectedCount`.
   * @throws {@link InvalidRequestError} the pattern or a glob cannot be read.
   * @throws {@link NotFoundError} the path does not exist.
   */
  async replace(
    path: string,
    pattern: string,
    replacement: string,
    options: ReplaceOptions = {},
  ): Promise<ReplaceResult> {
    const body = {
      sandbox_id: this.#sandboxId,
      path,
      pattern,
      replacement,
      regex: whenTrue(options.regex),
      ...chosen(options),
      expected_count: options.expectedCount,
      dry_run: whenTrue(options.dryRun),
    } satisfies Schemas["ReplaceRequest"];
    const call = post(`${PATH}/replace`, replaced, body, { readSeconds: SLOW_SECONDS });
    return this.#client.call(call, options);
  }

  /**
   * Does up to 256 operations in one request, one after the other. A failed one throws nothing: see
   * `failed` and each `error`. All contents together may have some 10 MiB, and all results of reads
   * 8 MiB.
   *
   * @throws {@link InvalidRequestError} no operation, too many, or an invalid one; nothing was
   * done.
   */
  async batch(
    operations: readonly FileOperation[],
    options: CallOptions & {
      /** Skip the operations after a failed one. */
      stopOnError?: boolean;
    } = {},
  ): Promise<BatchResult> {
    const body = {
      sandbox_id: this.#sandboxId,
      operations: operations.map(operationOf),
      stop_on_error: whenTrue(options.stopOnError),
    } satisfies Schemas["BatchRequest"];
    const call = post(`${PATH}/batch`, done, body, { readSeconds: SLOW_SECONDS });
    return this.#client.call(call, options);
  }

  /**
   * Writes up to 1,000 files in one request; when one fails, those before it stay.
   *
   * @param contents - for each file, its name below `path` and its data, as for {@link write}.
   * @param path - the folder.
   * @throws {@link InvalidRequestError} a name that leaves the folder.
   * @throws TypeError a name that holds a line end or NUL.
   */
  async writeMany(
    contents: Readonly<Record<string, Data>>,
    path = "/workspace",
    options: CallOptions = {},
  ): Promise<FileEntry[]> {
    const mark = newKey();
    const parts: Body[] = [];
    for (const [name, data] of Object.entries(contents)) {
      parts.push(partHeader(mark, name), bodyOf(data), encode("\r\n"));
    }
    parts.push(encode(`--${mark}--\r\n`));
    const entries = (answer: Answer) =>
      answer.json<{ entries: Schemas["Entry"][] }>().list("entries").map(entryOf);
    const call = request("POST", PATH, entries, {
      query: this.#at({ path }),
      body: joined(parts),
      headers: { "Content-Type": `multipart/form-data; boundary=${mark}` },
      readSeconds: SLOW_SECONDS,
      repeatable: true,
    });
    return this.#client.call(call, options);
  }

  /**
   * Returns the changes below a folder since a cursor. The Sandbox keeps the last 10,000 changes,
   * until no client has asked for ten minutes.
   *
   * @param path - the folder.
   * @throws {@link NotFoundError} no such folder exists.
   */
  async changes(
    path = "/workspace",
    options: ActingOptions & {
      /**
       * The `cursor` of an earlier answer. Default: begin to remember, and return no change but a
       * cursor.
       */
      since?: string;
      /** Also changes in folders below it. */
      recursive?: boolean;
    } = {},
  ): Promise<FileChanges> {
    const { since, recursive, user } = options;
    const query = this.#at({ path, since, recursive, user });
    return this.#client.call(get(`${PATH}/changes`, changesOf, { query }), options);
  }

  /**
   * Follows changes below a folder as they happen. It reports all changes after it has resolved,
   * also when the connection breaks in between.
   *
   * ```ts
   * for await (const change of await sandbox.files.watch("src", { recursive: true })) {
   *   console.log(change.type, change.path);
   * }
   * ```
   *
   * @param path - the folder.
   * @throws {@link NotFoundError} no such folder exists.
   */
  async watch(path = "/workspace", options: WatchOptions = {}): Promise<FileWatch> {
    return FileWatch.open(this.#client, this.#sandboxId, path, options);
  }

  /**
   * Returns a URL that downloads or uploads one file without a token. It holds for this path, this
   * method and this Sandbox, until it expires or `client.rotateSigningKey` is called. Anyone with
   * the link can use it.
   *
   * @param path - the file, which may be absent.
   * @param method - `"GET"` to download, `"PUT"` to upload.
   */
  async sign(
    path: string,
    method: "GET" | "PUT" = "GET",
    options: CallOptions & {
      /** Up to a week. Default: an hour. */
      expiresInSeconds?: number;
    } = {},
  ): Promise<SignedURL> {
    const body = {
      sandbox_id: this.#sandboxId,
      path,
      method,
      expires_in_seconds: options.expiresInSeconds,
    } satisfies Schemas["SignRequest"];
    return this.#client.call(post(`${PATH}/sign`, signed, body, { repeatable: true }), options);
  }

  /**
   * Deletes a file, a link or a folder.
   *
   * @param path - what to delete.
   * @throws {@link NotFoundError} the path does not exist.
   * @throws {@link ConflictError} the folder is not empty, and not `recursive`.
   */
  async remove(
    path: string,
    options: CallOptions & {
      /** Delete a folder with all that is in it. */
      recursive?: boolean;
    } = {},
  ): Promise<void> {
    const query = this.#at({ path, recursive: options.recursive });
    await this.#client.call(remove(PATH, nothing, { query }), options);
  }

  /**
   * Returns the content of a folder as one archive, to be read piece by piece. Code inside decides
   * about its names and links: unpack it with care.
   *
   * @param path - the folder.
   * @throws {@link NotFoundError} no such folder exists.
   */
  async readArchive(
    path = "/workspace",
    options: ActingOptions & {
      /** Default: `"tar.gz"`. A file that `user` may not read fails the call. */
      format?: ArchiveFormat;
    } = {},
  ): Promise<ByteStream> {
    const { format = "tar.gz", user } = options;
    const call = get(`${PATH}/archive`, content, {
      query: this.#at({ path, format, user }),
      readSeconds: SLOW_SECONDS,
    });
    return new ByteStream(await this.#client.open(call, options));
  }

  /**
   * Unpacks an archive into a folder; files that exist are replaced.
   *
   * @param path - the folder, which is made if it does not exist.
   * @param data - the archive, as for {@link write}.
   * @throws {@link InvalidRequestError} it is no archive, or an entry would be written outside of
   * the folder; earlier entries stay.
   */
  async writeArchive(
    path: string,
    data: Data,
    options: ActingOptions & {
      /** Default: the content says. */
      format?: ArchiveFormat;
    } = {},
  ): Promise<ExtractResult> {
    const { format, user } = options;
    const call = request("PUT", `${PATH}/archive`, extracted, {
      query: this.#at({ path, format, user }),
      body: bodyOf(data),
      headers: BINARY,
      readSeconds: SLOW_SECONDS,
      repeatable: true,
    });
    return this.#client.call(call, options);
  }

  #at(more: Record<string, string | number | boolean | undefined>): Record<string, string> {
    return queryOf({ sandbox_id: this.#sandboxId, ...more });
  }
}

function range(start = 0, length?: number): Record<string, string> {
  if (length !== undefined && length < 1) throw new TypeError("length must be at least 1");
  if (start < 0) {
    if (length !== undefined) {
      throw new TypeError("a start from the end goes to the end: leave length out");
    }
    return { Range: `bytes=${start}` };
  }
  if (length !== undefined) return { Range: `bytes=${start}-${start + length - 1}` };
  return start === 0 ? {} : { Range: `bytes=${start}-` };
}

/** Writes permissions in octal. */
export function octal(mode: number | string): string {
  return typeof mode === "string" ? mode : mode.toString(8).padStart(4, "0");
}

function chosen(options: Choice) {
  return {
    ignore_case: whenTrue(options.ignoreCase),
    globs: options.globs && [...options.globs],
    hidden: whenTrue(options.hidden),
    no_ignore: whenTrue(options.noIgnore),
    user: options.user,
  };
}

function operationOf(operation: FileOperation): Schemas["BatchOperation"] {
  const { content } = operation;
  return {
    op: operation.op,
    path: operation.path,
    source: operation.source,
    destination: operation.destination,
    content: typeof content === "string" ? content : undefined,
    content_base64: content instanceof Uint8Array ? toBase64(content) : undefined,
    mode: operation.mode === undefined ? undefined : octal(operation.mode),
    max_bytes: operation.maxBytes,
    depth: operation.depth,
    recursive: whenTrue(operation.recursive),
    overwrite: whenTrue(operation.overwrite),
    user: operation.user,
  } as Schemas["BatchOperation"];
}

function partHeader(mark: string, name: string): Body {
  if (/[\r\n\0]/.test(name)) {
    throw new TypeError(`a file's name must hold no line end and no NUL: ${JSON.stringify(name)}`);
  }
  const quoted = name.replaceAll("\\", "\\\\").replaceAll('"', '\\"');
  return encode(
    `--${mark}\r\nContent-Disposition: form-data; name="file"; filename="${quoted}"\r\n` +
      "Content-Type: application/octet-stream\r\n\r\n",
  );
}

function one(answer: Answer): FileEntry {
  return entryOf(answer.json());
}

function listed(answer: Answer): FileList {
  const obj = answer.json<Schemas["FileList"]>();
  return Object.assign(obj.list("entries").map(entryOf), { truncated: obj.flag("truncated") });
}

function copied(answer: Answer): CopyResult {
  const obj = answer.json<Schemas["CopyResult"]>();
  return {
    entry: entryOf(obj.object("entry") ?? new Wire({})),
    files: obj.count("files"),
    bytes: obj.count("bytes"),
    filesSkipped: obj.count("files_skipped"),
  };
}

function found(answer: Answer): SearchResult {
  const obj = answer.json<Schemas["SearchResult"]>();
  return {
    matches: obj.list("matches").map(matchOf),
    filesSearched: obj.count("files_searched"),
    truncated: obj.flag("truncated"),
  };
}

function matchOf(obj: Wire<Schemas["SearchMatch"]>): SearchMatch {
  return {
    path: obj.required("path"),
    line: obj.integer("line"),
    text: obj.text("text"),
    cut: obj.flag("cut"),
    spans: obj.list("spans").map((span) => [span.count("start"), span.count("end")]),
    before: obj.strings("before"),
    after: obj.strings("after"),
  };
}

function replaced(answer: Answer): ReplaceResult {
  const obj = answer.json<Schemas["ReplaceResult"]>();
  return {
    count: obj.count("count"),
    files: obj.list("files").map((item) => ({
      path: item.required("path"),
      count: item.count("count"),
      lines: item.integers("lines"),
    })),
    filesTooLarge: obj.count("files_too_large"),
    dryRun: obj.flag("dry_run"),
  };
}

function done(answer: Answer): BatchResult {
  const obj = answer.json<Schemas["BatchResult"]>();
  return { results: obj.list("results").map(outcomeOf), failed: obj.count("failed") };
}

function outcomeOf(obj: Wire<Schemas["BatchResult"]["results"][number]>): FileOutcome {
  const status = obj.required("status");
  const entry = obj.object("entry");
  const error = obj.object("error");
  const text = obj.maybe("content");
  const bytes = text === undefined ? obj.bytes("content_base64") : encode(text);
  return {
    status,
    ok: status === "ok",
    entry: entry && entryOf(entry),
    entries: obj.list("entries").map(entryOf),
    content: bytes,
    text: text ?? decode(bytes ?? new Uint8Array()),
    truncated: obj.flag("truncated"),
    changed: obj.count("changed"),
    error: error && failures.ofObject(error as Wire<failures.WireError>),
  };
}

function changesOf(answer: Answer): FileChanges {
  const obj = answer.json<Schemas["FileChanges"]>();
  return {
    changes: obj.list("changes").map(changeOf),
    cursor: obj.text("cursor"),
    reset: obj.flag("reset"),
  };
}

function signed(answer: Answer): SignedURL {
  const obj = answer.json<Schemas["SignedURL"]>();
  return {
    url: obj.required("url"),
    method: obj.text("method"),
    expiresAt: obj.time("expires_at"),
  };
}

function extracted(answer: Answer): ExtractResult {
  const obj = answer.json<Schemas["ArchiveResult"]>();
  return {
    path: obj.text("path"),
    files: obj.count("files"),
    directories: obj.count("directories"),
    links: obj.count("links"),
    skipped: obj.count("skipped"),
    bytes: obj.count("bytes"),
  };
}
