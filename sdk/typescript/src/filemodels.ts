// Files and folders, and the results of their operations.

import type { Schemas, Wire, Word } from "./api/wire.js";
import type { CloudSandboxError } from "./errors.js";

/**
 * One file, folder or link in a Sandbox.
 *
 * Code inside can make any name and any link. Check a `path` before using it outside.
 */
export interface FileEntry {
  /** The last part of `path`. */
  name: string;
  /** Absolute path inside the Sandbox. */
  path: string;
  /** Its type. */
  type: Word<Schemas["Entry"]["type"]>;
  /** Whether this is a folder. */
  isDir: boolean;
  /** Length of a file. */
  sizeBytes: number;
  /** Permissions in octal, such as `"0644"`. */
  mode: string;
  /** User name or number. */
  owner: string;
  /** Group name or number. */
  group: string;
  /** Time of the last change. */
  modifiedAt: Date | undefined;
  /** The target of a link; `undefined` for other types. */
  symlinkTarget: string | undefined;
}

/** The content of a folder. */
export interface FileList extends Array<FileEntry> {
  /** The folder has more entries than an answer holds. */
  truncated: boolean;
}

/** The kinds of archives. */
export type ArchiveFormat = "tar" | "tar.gz" | "zip";

/** The result of a copy. */
export interface CopyResult {
  /** The destination after the copy. */
  entry: FileEntry;
  /** Files and links that were copied. */
  files: number;
  /** Their size in bytes. */
  bytes: number;
  /** Sockets, pipes and devices that were left out. */
  filesSkipped: number;
}

/** One line that matches, or one file. */
export interface SearchMatch {
  /** The file. */
  path: string;
  /** Number of the line, from 1; `undefined` for a file as such. */
  line: number | undefined;
  /** The line without its end, at most 2,048 bytes of it. */
  text: string;
  /** The line is longer. */
  cut: boolean;
  /** The matches in `text`: start and end, counted in bytes of UTF-8. */
  spans: [start: number, end: number][];
  /** Lines before it. */
  before: string[];
  /** Lines after it. */
  after: string[];
}

/** The result of a search. */
export interface SearchResult {
  /** In order of paths and lines. */
  matches: SearchMatch[];
  /** Files that were looked into. */
  filesSearched: number;
  /** More matches may exist. */
  truncated: boolean;
}

/** The result of unpacking an archive. */
export interface ExtractResult {
  /** The folder. */
  path: string;
  /** Files that were written. */
  files: number;
  /** Folders that were made. */
  directories: number;
  /** Symbolic links that were made. */
  links: number;
  /** Devices and other things that are no files. */
  skipped: number;
  /** Bytes that were written. */
  bytes: number;
}

/** The replacements in one file. */
export interface ReplacedFile {
  /** The file. */
  path: string;
  /** Occurrences. */
  count: number;
  /** The lines of the first 100 of them, before the change. */
  lines: number[];
}

/** The result of replacing text. */
export interface ReplaceResult {
  /** Occurrences in all files. */
  count: number;
  /** The files that had some. */
  files: ReplacedFile[];
  /** Files of more than 16 MiB, which were passed over. */
  filesTooLarge: number;
  /** Nothing was changed. */
  dryRun: boolean;
}

/** One thing to do in a batch. Leave out the fields that its `op` does not use. */
export interface FileOperation {
  /** The operation. */
  op: "read" | "write" | "stat" | "list" | "mkdir" | "move" | "copy" | "chmod" | "remove";
  /** The file or folder; for all but `"move"` and `"copy"`. */
  path?: string;
  /** For `"move"` and `"copy"`. */
  source?: string;
  /** For `"move"` and `"copy"`. */
  destination?: string;
  /** For `"write"`; text is written as UTF-8. */
  content?: string | Uint8Array;
  /**
   * For `"chmod"`, and for `"write"` if you like: a number such as `0o755`, or octal text such as
   * `"755"`.
   */
  mode?: number | string;
  /** For `"read"`, up to 1 MiB, which is the default. */
  maxBytes?: number;
  /** For `"list"`, as in `files.list`. */
  depth?: number;
  /** For `"copy"`, `"chmod"` and `"remove"`. */
  recursive?: boolean;
  /** For `"copy"`. */
  overwrite?: boolean;
  /** For `"copy"` and `"chmod"`: who acts. */
  user?: string;
}

/** The outcome of one operation of a batch. */
export interface FileOutcome {
  /** `"skipped"` after an error. */
  status: Word<"ok" | "error" | "skipped">;
  /** Whether the status is `"ok"`. */
  ok: boolean;
  /** The resulting or requested file. */
  entry: FileEntry | undefined;
  /** The result of a `"list"`. */
  entries: FileEntry[];
  /** The result of a `"read"`. */
  content: Uint8Array | undefined;
  /** The same as text; bytes that are not UTF-8 are replaced by U+FFFD. */
  text: string;
  /** A `"read"` or `"list"` did not return all. */
  truncated: boolean;
  /** How many files and folders a `"chmod"` changed. */
  changed: number;
  /** The failure, which is not thrown; `undefined` on success. */
  error: CloudSandboxError | undefined;
}

/** The outcome of a batch. */
export interface BatchResult {
  /** In the order of the operations. */
  results: FileOutcome[];
  /** How many have another status than `"ok"`. */
  failed: number;
}

/** One change below a folder that is watched. */
export interface FileChange {
  /**
   * `"renamed"`: this is the old name; the new one, if it is below the folder, is `"created"`.
   * `"reset"`: changes are missing, so list the files again.
   */
  type: Word<"created" | "modified" | "attributes" | "removed" | "renamed" | "reset">;
  /** The changed file or folder; with `"reset"` the watched folder. */
  path: string;
  /** The cursor after this change. */
  cursor: string;
}

/** Changes below a folder. */
export interface FileChanges {
  /** Oldest first. */
  changes: FileChange[];
  /** The cursor for later changes. */
  cursor: string;
  /** Changes are missing: list the files again. */
  reset: boolean;
}

/** A URL for one file that needs no token: treat it as a password. */
export interface SignedURL {
  /** The URL. */
  url: string;
  /** How to use it. */
  method: Word<"GET" | "PUT">;
  /** When it expires. */
  expiresAt: Date | undefined;
}

/** Decodes one file, folder or link. */
export function entryOf(obj: Wire<Schemas["Entry"]>): FileEntry {
  const type = obj.text("type");
  return {
    name: obj.text("name"),
    path: obj.required("path"),
    type,
    isDir: type === "directory",
    sizeBytes: obj.count("size_bytes"),
    mode: obj.text("mode"),
    owner: obj.text("owner"),
    group: obj.text("group"),
    modifiedAt: obj.time("modified_at"),
    symlinkTarget: obj.maybe("symlink_target") || undefined,
  };
}

/** Decodes one change. */
export function changeOf(obj: Wire<Schemas["FileChange"]>): FileChange {
  return { type: obj.text("type"), path: obj.text("path"), cursor: obj.text("cursor") };
}
