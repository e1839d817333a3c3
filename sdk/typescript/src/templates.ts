// Templates and how they are built.

import { platform } from "#platform";
import {
  type Answer,
  type Body,
  type Call,
  get,
  newKey,
  nothing,
  once,
  post,
  remove,
  request,
  segment,
  whenTrue,
} from "./api/call.js";
import * as failures from "./api/failures.js";
import { encode, type Schemas, toBase64, Wire, type Word } from "./api/wire.js";
import type { Client } from "./client.js";
import { bodyOf, type Data, joined, streamOf } from "./data.js";
import { asyncDispose } from "./dispose.js";
import { type CloudSandboxError, ConflictError, InternalError } from "./errors.js";
import { octal } from "./files.js";
import { Follower } from "./following.js";
import type { CallOptions } from "./options.js";
import { ARCHIVE_END, padding, tarHeader } from "./tar.js";

/** A file to put into a Template. */
export interface TemplateFile {
  /** Its absolute path. */
  path: string;
  /** Text is written as UTF-8. */
  content: string | Uint8Array;
  /** A number such as `0o755`, or octal text. Default: `0644`. */
  mode?: number | string;
  /** Default: `"root"`. */
  owner?: "root" | "user";
}

/** A root filesystem that Sandboxes start from. */
export interface TemplateInfo {
  /** Its name for `Sandbox.create`. */
  template: string;
  /** Its name, without tag or version. */
  name: string;
  /** `undefined` when the version was named. */
  tag: string | undefined;
  /** Hash of its content. */
  version: string;
  /** It is the server's own, for all tenants. */
  shared: boolean;
  /** Its source. */
  source: string;
  /** The requested packages. */
  packages: string[];
  /** Environment of processes. Variables of a Sandbox or a call are added to it. */
  env: Record<string, string>;
  /** Shell command that runs in every Sandbox of it; empty for none. */
  start: string;
  /** Shell command that a Sandbox waits for; empty for none. */
  ready: string;
  /** The size of its image. */
  sizeBytes: number;
  /**
   * The size of its image on the server's disk, which counts for the quota `template_mb` unless
   * `shared`.
   */
  storedBytes: number;
  /** When it was built. */
  createdAt: Date | undefined;
  /** In the answer of `get`, every version, newest first. */
  versions: TemplateInfo[];
}

/** The result of a removal. */
export interface RemovedTemplates {
  /** The removed names. */
  removed: string[];
  /** The freed disk space; 0 if other tags or versions still need the images. */
  freedBytes: number;
}

/** A build of a Template. */
export interface BuildInfo {
  /** Its ID. */
  buildId: string;
  /** Its Template. */
  template: string;
  /** Its source. */
  source: string;
  /** Its state. */
  state: Word<Schemas["TemplateBuild"]["state"]>;
  /** Whether it is over, well or not. */
  ended: boolean;
  /** Its present or last step. */
  progress: string;
  /** The hash of the built content; empty before it is ready. */
  version: string;
  /** The size of the image; 0 before it is ready. */
  sizeBytes: number;
  /** The same content had been built before. */
  cached: boolean;
  /** The failure, which is not thrown; `undefined` on success. */
  error: CloudSandboxError | undefined;
  /** When it was asked for. */
  createdAt: Date | undefined;
  /** When it began. */
  startedAt: Date | undefined;
  /** When it ended. */
  endedAt: Date | undefined;
}

/** A line of a build's log. */
export interface BuildLine {
  /** The line without its end. */
  text: string;
  /** The offset of the next line. */
  nextOffset: number;
  /** When it was written. */
  at: Date | undefined;
}

/** Options of a build. */
export interface BuildOptions extends CallOptions {
  /**
   * `"oci:REF"` for an image of a registry, unchanged except for `packages`; `"debian:SUITE"` for
   * packages of a suite; or `"tar:"` for the `archive`.
   */
  source?: string;
  /**
   * Path of a Dockerfile here, in place of `source`, `packages`, `files`, `env` and `bare`. Its
   * `CMD` and `ENTRYPOINT` are the start command unless `start` is. Not in browsers.
   */
  dockerfile?: string;
  /**
   * The build context, without the files that its `.dockerignore` names. Default: the folder of the
   * Dockerfile.
   */
  context?: string;
  /** Values for its `ARG`. */
  buildArgs?: Readonly<Record<string, string>>;
  /**
   * A root filesystem, or an image of `docker save`: a tar file, plain or compressed with gzip or
   * zstd, of at most 4 GiB.
   */
  archive?: Data;
  /** More packages, for `"debian:SUITE"` and images. */
  packages?: readonly string[];
  /** Files to add. More than 1 MiB in total is sent as an archive. */
  files?: readonly TemplateFile[];
  /** Environment of processes in its Sandboxes. */
  env?: Readonly<Record<string, string>>;
  /** Shell command that runs in the background of every Sandbox. */
  start?: string;
  /** Shell command that must succeed before a Sandbox is handed out. */
  ready?: string;
  /** Leave an image as it is. */
  bare?: boolean;
  /** Build it although the same content exists. */
  force?: boolean;
  /**
   * Build once for this key; archives may have 16 MiB then. Default: a new key, or none with an
   * archive.
   */
  idempotencyKey?: string;
}

const PATH = "/api/v1/templates";
// Taking an archive in takes its time.
const ARCHIVE_SECONDS = 600;
// Files of more bytes together are sent as an archive: JSON may hold 8 MiB.
const INLINE_BYTES = 1 << 20;
// The user that Sandboxes have by default.
const USER_ID = 1000;

/** The root filesystems that Sandboxes start from: `client.templates`. */
export class Templates {
  readonly #client: Client;

  /** @internal */
  constructor(client: Client) {
    this.#client = client;
  }

  /**
   * Builds a Template and resolves once it is ready. Leaving early, by an aborted `signal`, does
   * not cancel the build: see {@link cancel}.
   *
   * @param template - `NAME` or `NAME:TAG`; a name alone means `latest`.
   * @throws {@link InvalidRequestError} a value breaks a rule, or cannot be built; for a Dockerfile
   * it names the line.
   * @throws {@link ExhaustedError} too many builds wait or run, or the quota `template_mb` is used
   * up or has less left than the image takes.
   * @throws {@link ConflictError} it was cancelled.
   * @throws {@link CloudSandboxError} it failed; the class says why.
   */
  async build(
    template: string,
    options: BuildOptions & {
      /** Called with each line of the log as it comes, and waited for. */
      onLog?: (line: string) => unknown;
    } = {},
  ): Promise<BuildInfo> {
    const { signal } = options;
    const { buildId } = await this.startBuild(template, options);
    const log = this.followBuild(buildId, signal ? { signal } : {});
    for await (const line of log) await options.onLog?.(line.text);
    return checked(log.info ?? (await this.getBuild(buildId, options)));
  }

  /** Queues a build and returns at once, with the options of {@link build}. */
  async startBuild(template: string, options: BuildOptions = {}): Promise<BuildInfo> {
    return this.#client.call(await build(template, options), options);
  }

  /** Returns your own Templates and the server's, by name and tag. */
  async list(options: CallOptions = {}): Promise<TemplateInfo[]> {
    const call = get(PATH, (answer) =>
      answer.json<Schemas["TemplateList"]>().list("templates").map(templateOf),
    );
    return this.#client.call(call, options);
  }

  /**
   * Returns a Template with every version.
   *
   * @param template - `NAME`, `NAME:TAG` or `NAME@VERSION`.
   * @throws {@link NotFoundError} no such name or build exists.
   */
  async get(template: string, options: CallOptions = {}): Promise<TemplateInfo> {
    return this.#client.call(
      get(pathOf(template), (answer) => templateOf(answer.json())),
      options,
    );
  }

  /**
   * Removes a Template, and returns the removed names and the freed disk space.
   *
   * @param template - `NAME` for all of it, `NAME:TAG` for the tag alone, `NAME@VERSION` for the
   * version and its tags.
   * @throws {@link ConflictError} Sandboxes run from it.
   * @throws {@link PermissionDeniedError} it is the server's own.
   * @throws {@link NotFoundError} no such name or build exists.
   */
  async delete(template: string, options: CallOptions = {}): Promise<RemovedTemplates> {
    const call = remove(pathOf(template), (answer) => {
      const obj = answer.json<{ removed: string[]; freed_bytes: number }>();
      return { removed: obj.strings("removed"), freedBytes: obj.count("freed_bytes") };
    });
    return this.#client.call(call, options);
  }

  /** Returns your builds, newest first: all running ones, and the last 50 ended ones. */
  async builds(options: CallOptions = {}): Promise<BuildInfo[]> {
    const call = get("/api/v1/builds", (answer) =>
      answer.json<{ builds: Schemas["TemplateBuild"][] }>().list("builds").map(buildOf),
    );
    return this.#client.call(call, options);
  }

  /**
   * Returns the present state of a build. A failed build throws nothing.
   *
   * @throws {@link NotFoundError} no such name or build exists.
   */
  async getBuild(buildId: string, options: CallOptions = {}): Promise<BuildInfo> {
    return this.#client.call(get(buildPath(buildId), oneBuild), options);
  }

  /**
   * Cancels a build, and resolves once nothing of it is left.
   *
   * @throws {@link ConflictError} it has ended.
   */
  async cancel(buildId: string, options: CallOptions = {}): Promise<BuildInfo> {
    const call = remove(buildPath(buildId), oneBuild, { repeatable: false });
    return this.#client.call(call, options);
  }

  /**
   * Returns the lines of a build's log as they come, until it has ended. When the connection
   * breaks, it resumes where it stopped.
   */
  followBuild(
    buildId: string,
    options: CallOptions & {
      /** `nextOffset` of the last line that is known. Default: 0. */
      start?: number;
    } = {},
  ): BuildLog {
    return new BuildLog(this.#client, buildId, options);
  }
}

function checked(info: BuildInfo): BuildInfo {
  if (info.error) throw info.error;
  if (info.state === "cancelled") throw new ConflictError("the build was cancelled");
  if (info.state !== "ready") throw new InternalError(`the build ended ${info.state}`);
  return info;
}

/**
 * The lines of a build's log; see `templates.followBuild`. Leaving the loop early stops following,
 * and the build continues.
 */
export class BuildLog implements AsyncIterable<BuildLine>, AsyncDisposable {
  readonly #follower: Follower;
  #offset: number;
  #info: BuildInfo | undefined;
  #ended = false;

  /** @internal */
  constructor(client: Client, buildId: string, options: CallOptions & { start?: number }) {
    this.#offset = options.start ?? 0;
    const ask = () =>
      get(`${buildPath(buildId)}/log`, nothing, {
        query: { from: String(this.#offset), follow: "true" },
        headers: { Accept: "text/event-stream" },
      });
    this.#follower = new Follower(client, ask, options.signal);
  }

  /** The build, as it was at the beginning or at its end; `undefined` before the first line. */
  get info(): BuildInfo | undefined {
    return this.#info;
  }

  /** The same as a Web Stream; cancelling it stops following. */
  get readable(): ReadableStream<BuildLine> {
    return streamOf(this);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<BuildLine, void, undefined> {
    try {
      while (!this.#ended) {
        const event = await this.#follower.next();
        if (!event) return;
        if (event.name === "start" || event.name === "end") {
          this.#info = buildOf(Wire.parse(event.data));
          this.#ended = event.name === "end";
          continue;
        }
        const line = lineOf(event.data);
        this.#offset = line.nextOffset;
        yield line;
      }
    } finally {
      if (this.#ended) await this.#follower.finish();
      await this.close();
    }
  }

  /** Stops following; the build continues. */
  async close(): Promise<void> {
    await this.#follower.close();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

/** Requests a build, once for each key. */
async function build(template: string, options: BuildOptions): Promise<Call<BuildInfo>> {
  const { dockerfile, context, files, idempotencyKey } = options;
  let text: string | undefined;
  let archive = options.archive === undefined ? undefined : bodyOf(options.archive);
  if (dockerfile !== undefined) {
    const recipe = await platform.readDockerfile(dockerfile, context);
    text = recipe.text;
    archive = recipe.archive ?? archive;
  } else if (context !== undefined) {
    throw new TypeError("context is the folder of a Dockerfile: pass dockerfile too");
  }
  const packed = files?.map((file) => ({ file, data: bytesOf(file) })) ?? [];
  const large = packed.reduce((size, { data }) => size + data.length, 0) > INLINE_BYTES;
  const body = {
    template,
    source: options.source,
    dockerfile: text,
    build_args: options.buildArgs,
    packages: options.packages && [...options.packages],
    files: large ? undefined : files?.map(fileOf),
    env: options.env,
    start: options.start,
    ready: options.ready,
    bare: whenTrue(options.bare),
    force: whenTrue(options.force),
  } satisfies Schemas["TemplateRequest"];
  const uploads: [string, Body][] = [];
  if (large) uploads.push(["files", archiveOf(packed)]);
  if (archive !== undefined) uploads.push(["archive", archive]);
  if (uploads.length === 0) return once(post(PATH, oneBuild, body), idempotencyKey);
  const call = form(body, uploads);
  // The server keeps the whole body of a request with a key, so archives go without.
  return idempotencyKey === undefined ? call : once(call, idempotencyKey);
}

function bytesOf(file: TemplateFile): Uint8Array<ArrayBuffer> {
  return typeof file.content === "string" ? encode(file.content) : new Uint8Array(file.content);
}

/** Packs files that are too large for JSON. */
function archiveOf(files: { file: TemplateFile; data: Uint8Array<ArrayBuffer> }[]): Body {
  const parts: Body[] = [];
  for (const { file, data } of files) {
    const mode = file.mode ?? 0o644;
    const header = tarHeader({
      name: file.path.replace(/^\/+/, ""),
      size: data.length,
      mode: typeof mode === "number" ? mode : Number.parseInt(mode, 8),
      owner: file.owner === "user" ? USER_ID : 0,
    });
    parts.push(header, data, new Uint8Array(padding(data.length)));
  }
  return joined([...parts, ARCHIVE_END]);
}

function fileOf(file: TemplateFile) {
  const { path, content, mode, owner } = file;
  return {
    path,
    content: typeof content === "string" ? content : undefined,
    content_base64: typeof content === "string" ? undefined : toBase64(content),
    mode: mode === undefined ? undefined : octal(mode),
    owner,
  };
}

function form(body: object, uploads: [string, Body][]): Call<BuildInfo> {
  const mark = newKey();
  const parts: Body[] = [
    encode(
      `--${mark}\r\nContent-Disposition: form-data; name="template"\r\n` +
        `Content-Type: application/json\r\n\r\n${JSON.stringify(body)}\r\n`,
    ),
  ];
  for (const [name, upload] of uploads) {
    const head =
      `--${mark}\r\nContent-Disposition: form-data; name="${name}"; filename="${name}"\r\n` +
      "Content-Type: application/octet-stream\r\n\r\n";
    parts.push(encode(head), upload, encode("\r\n"));
  }
  parts.push(encode(`--${mark}--\r\n`));
  return request("POST", PATH, oneBuild, {
    body: joined(parts),
    headers: { "Content-Type": `multipart/form-data; boundary=${mark}` },
    readSeconds: ARCHIVE_SECONDS,
  });
}

function pathOf(template: string): string {
  return `${PATH}/${segment(template, "template")}`;
}

function buildPath(buildId: string): string {
  return `/api/v1/builds/${segment(buildId, "build ID")}`;
}

function lineOf(data: string): BuildLine {
  const obj = Wire.parse<{ text: string; next_offset: number; at: string }>(data);
  return { text: obj.text("text"), nextOffset: obj.count("next_offset"), at: obj.time("at") };
}

function templateOf(
  obj: Wire<Schemas["Template"] & Partial<Schemas["TemplateVersions"]>>,
): TemplateInfo {
  return {
    template: obj.required("template"),
    name: obj.text("name"),
    tag: obj.maybe("tag"),
    version: obj.text("version"),
    shared: obj.flag("shared"),
    source: obj.text("source"),
    packages: obj.strings("packages"),
    env: obj.texts("env"),
    start: obj.text("start"),
    ready: obj.text("ready"),
    sizeBytes: obj.count("size_bytes"),
    storedBytes: obj.count("stored_bytes"),
    createdAt: obj.time("created_at"),
    versions: obj.list("versions").map((version) => templateOf(version as never)),
  };
}

function oneBuild(answer: Answer): BuildInfo {
  return buildOf(answer.json());
}

function buildOf(obj: Wire<Schemas["TemplateBuild"]>): BuildInfo {
  const error = obj.object("error");
  const state = obj.text("state");
  return {
    buildId: obj.required("build_id"),
    template: obj.text("template"),
    source: obj.text("source"),
    state,
    ended: state === "ready" || state === "failed" || state === "cancelled",
    progress: obj.text("progress"),
    version: obj.text("version"),
    sizeBytes: obj.count("size_bytes"),
    cached: obj.flag("cached"),
    error: error && failures.ofObject(error as Wire<failures.WireError>),
    createdAt: obj.time("created_at"),
    startedAt: obj.time("started_at"),
    endedAt: obj.time("ended_at"),
  };
}
