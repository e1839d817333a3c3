// The Sandbox as an object.

import {
  type Answer,
  type Call,
  get,
  nothing,
  once,
  post,
  queryOf,
  remove,
  whenTrue,
} from "./api/call.js";
import * as failures from "./api/failures.js";
import { type Schemas, Wire } from "./api/wire.js";
import { type Client, clientFor, type WithClient } from "./client.js";
import { type ContextInfo, Contexts, contextIdOf } from "./contexts.js";
import type { Data } from "./data.js";
import { asyncDispose } from "./dispose.js";
import {
  CloudSandboxError,
  ConnectionFailedError,
  ForkError,
  NotFoundError,
  UnavailableError,
} from "./errors.js";
import {
  again,
  type Execution,
  end,
  execute,
  executionOf,
  outputOf,
  type Result,
  type RunOptions,
  resultOf,
} from "./execution.js";
import type { FileEntry, FileList } from "./filemodels.js";
import { Files, type ReadFormat } from "./files.js";
import { Follower, Patience } from "./following.js";
import { Git } from "./git.js";
import type { CallOptions } from "./options.js";
import { all, PAGE_SIZE } from "./paging.js";
import { Processes } from "./processes.js";
import {
  create,
  isOver,
  look,
  type OpenPort,
  oneSession,
  openPorts,
  type PortAccess,
  type PortLink,
  page,
  pathOf,
  portAccess,
  portLink,
  type SandboxChanges,
  type SandboxInfo,
  type SandboxOptions,
  START_SECONDS,
  secretsOf,
  sessionOf,
  update,
} from "./session.js";
import { oneSnapshot, type SnapshotInfo, snapshotIdOf, snapshotPage } from "./snapshots.js";
import type { ByteStream } from "./streams.js";

/** Options of {@link Sandbox.create}. */
export interface CreateOptions extends SandboxOptions, WithClient, CallOptions {
  /**
   * Start from this Snapshot, its ID or its name, instead of a Template, with the resources that
   * the Snapshot has.
   */
  snapshot?: SnapshotInfo | string;
}

/** Options of {@link Sandbox.list}. */
export interface ListOptions extends WithClient, CallOptions {
  /** Only Sandboxes in one of these states. Default: all that have not ended. */
  states?: readonly string[];
  /** Only Sandboxes whose metadata has every pair. */
  metadata?: Readonly<Record<string, string>>;
  /** Return at most this many. Default: all. */
  limit?: number;
}

/** How code is run. */
export interface RunCodeOptions extends RunOptions {
  /**
   * Such as `"python"`, `"javascript"`, `"typescript"` or `"bash"`. Default: `"python"`, or the
   * context's.
   */
  language?: string;
  /** The context that runs it, or the context's ID. Default: the default context. */
  context?: ContextInfo | string;
  /** Called with each rich result as it comes. */
  onResult?: (result: Result) => unknown;
}

/** Values of the forks. Other values are copied from the Sandbox, except for secrets. */
export interface ForkOptions
  extends Pick<
      SandboxOptions,
      | "timeoutSeconds"
      | "idleTimeoutSeconds"
      | "onTimeout"
      | "autoResume"
      | "network"
      | "secrets"
      | "idempotencyKey"
    >,
    Pick<SandboxChanges, "metadata" | "env">,
    CallOptions {
  /** A name; of several, `name-1`, `name-2` and so on. */
  name?: string;
  /** The forks use the secrets of the Sandbox. Default: they have only the ones in `secrets`. */
  keepSecrets?: boolean;
}

/** How a Sandbox is saved or resumed. */
export interface MemoryOptions extends CallOptions {
  /** False saves, or resumes, files only, so that it boots. Default: true. */
  memory?: boolean;
}

/**
 * One isolated machine that runs code and keeps files.
 *
 * Make one with {@link create} or find one with {@link connect}. With `await using` it is ended
 * when its block is left, also by an error; otherwise call {@link kill}, or the server pauses it at
 * its deadline.
 *
 * ```ts
 * await using sandbox = await Sandbox.create();
 * const execution = await sandbox.runCode("print(6 * 7)");
 * console.log(execution.stdout);
 * ```
 *
 * Any method that calls the server may reject with the reason of its `signal`, or with a
 * {@link CloudSandboxError}. A {@link NotFoundError} means that the Sandbox ended long ago, and a
 * {@link ConflictError} that it does not run. {@link AuthenticationError}, {@link ExhaustedError},
 * {@link UnavailableError}, {@link ConnectionFailedError} and {@link SandboxTimeoutError} are
 * possible too. Methods list further errors only.
 */
export class Sandbox implements AsyncDisposable {
  /** Its ID for life. A session has the same. */
  readonly sandboxId: string;
  /** Its files. */
  readonly files: Files;
  /** Its interpreters that keep their state. */
  readonly contexts: Contexts;
  /** Its processes, shells and terminals. */
  readonly processes: Processes;
  /** Its repositories. */
  readonly git: Git;

  readonly #client: Client;

  /** @internal */
  constructor(client: Client, sandboxId: string) {
    this.#client = client;
    this.sandboxId = sandboxId;
    this.files = new Files(client, sandboxId);
    this.contexts = new Contexts(client, sandboxId);
    this.processes = new Processes(client, sandboxId);
    this.git = new Git(client, sandboxId);
  }

  /**
   * Starts a Sandbox and resolves once it is ready.
   *
   * If this program dies before it ends the Sandbox, the Sandbox is paused at its deadline. With
   * `onTimeout: "end"` it ends then, and nothing is left of it.
   *
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link NotFoundError} no such Template or Snapshot exists.
   * @throws {@link ConflictError} the name is in use, or the key was used for something else.
   * @throws {@link ExhaustedError} a quota or the server's capacity is used up.
   * @throws TypeError the address or the credentials cannot work.
   */
  static async create(options: CreateOptions = {}): Promise<Sandbox> {
    const { snapshot } = options;
    const call = create(options, snapshot === undefined ? undefined : snapshotIdOf(snapshot));
    const client = clientFor(options);
    const info = await client.call(call, options);
    return new Sandbox(client, info.sandboxId);
  }

  /**
   * Returns a Sandbox that runs already. `await using` ends this one too.
   *
   * @param sandboxId - its ID or name.
   * @throws {@link NotFoundError} no such Sandbox exists, it has ended, or it is not yours.
   */
  static async connect(
    sandboxId: string,
    options: WithClient & CallOptions = {},
  ): Promise<Sandbox> {
    const client = clientFor(options);
    const info = await client.call(look(sandboxId), options);
    if (isOver(info)) throw new NotFoundError(`the sandbox ${info.sandboxId} has ended`);
    return new Sandbox(client, info.sandboxId);
  }

  /** Returns your Sandboxes, newest first. */
  static async list(options: ListOptions = {}): Promise<SandboxInfo[]> {
    const client = clientFor(options);
    const { limit, states, metadata } = options;
    return all((cursor, left) => {
      const size = limit === undefined ? undefined : Math.min(left, PAGE_SIZE);
      return client.call(page(size, cursor, states, metadata), options);
    }, limit);
  }

  /** The same as `sandboxId`. */
  get sessionId(): string {
    return this.sandboxId;
  }

  // Running.

  /**
   * Runs code to its end and returns the execution, also when the code failed.
   *
   * Python, JavaScript and TypeScript run in a context that keeps its state: the next execution has
   * the variables, imports and working directory. Bash, R and Java keep their state in a context
   * that was made for them. Otherwise every call is a new program.
   *
   * The code, and this call, survive broken connections and restarts of the server. An aborted
   * `signal`, or an error of a handler, ends the code. When the Sandbox is paused meanwhile, the
   * status is `"paused"`. The code continues when the Sandbox resumes:
   * `processes.get(execution.processId)` returns it.
   *
   * @param code - source text.
   * @throws {@link InvalidRequestError} an unknown language, or a value out of bounds.
   * @throws {@link NotFoundError} no such context exists.
   * @throws {@link TooLargeError} more code or input than the server takes.
   * @throws {@link ConnectionFailedError} the server could not be reached, or was away for a
   * minute; then the code may have run, or may still run.
   */
  async runCode(code: string, options: RunCodeOptions = {}): Promise<Execution> {
    const { context, onStdout, onStderr, onResult } = options;
    const stream = Boolean(onStdout || onStderr || onResult);
    const call = execute(
      {
        sandboxId: this.sandboxId,
        code,
        language: options.language ?? (context === undefined ? "python" : undefined),
        contextId: context === undefined ? undefined : contextIdOf(context),
        stream,
      },
      options,
    );
    let theirs = false; // a handler failed, with an error of any class
    const guarded = async (handler: () => unknown) => {
      try {
        await handler();
      } catch (err) {
        theirs = true;
        throw err;
      }
    };
    try {
      if (stream) return await this.#runStreaming(call, options, guarded);
      return await this.#patiently(
        (sent) => this.#client.call(sent ? again(call) : call, options),
        options.signal,
      );
    } catch (err) {
      // Otherwise it did not begin, has ended, or cannot be reached.
      if (theirs || !(err instanceof CloudSandboxError)) await this.#end(call);
      throw err;
    }
  }

  async #end(call: Call<unknown>): Promise<void> {
    try {
      await this.#client.call(end(this.sandboxId, call));
    } catch (err) {
      if (!(err instanceof CloudSandboxError)) throw err; // the first error matters more
    }
  }

  /**
   * Repeats a call while the server is away. `sent` says that an earlier try may have reached it.
   */
  async #patiently<T>(
    what: (sent: boolean) => Promise<T>,
    signal: AbortSignal | undefined,
  ): Promise<T> {
    const patience = new Patience();
    let sent = false;
    for (;;) {
      try {
        return await what(sent);
      } catch (err) {
        if (!(err instanceof ConnectionFailedError || err instanceof UnavailableError)) throw err;
        sent ||= err instanceof ConnectionFailedError && err.sent;
        if (!sent || !this.#client.retries) throw err;
        await patience.wait(err, signal);
      }
    }
  }

  async #runStreaming(
    call: Call<Execution>,
    options: RunCodeOptions,
    guarded: (handler: () => unknown) => Promise<void>,
  ): Promise<Execution> {
    const { onStdout, onStderr, onResult, signal } = options;
    let ask = call;
    const follower = new Follower(this.#client, () => ask, signal);
    try {
      await this.#patiently(async (sent) => {
        ask = sent ? again(call) : call;
        await follower.open();
        ask = again(call);
      }, signal);
      for (;;) {
        const event = await follower.next();
        if (!event) break;
        const { name, data } = event;
        if (name === "result") {
          await follower.finish();
          return executionOf(Wire.parse(data));
        }
        if (name === "display" && onResult) await guarded(() => onResult(resultOf(data)));
        else if (name === "stdout" && onStdout) await guarded(() => onStdout(outputOf(data)));
        else if (name === "stderr" && onStderr) await guarded(() => onStderr(outputOf(data)));
        if (event.id) ask = again(call, event.id);
      }
    } finally {
      await follower.close();
    }
    throw new ConnectionFailedError("the stream ended before the execution's result");
  }

  /**
   * Runs a shell command to its end, as {@link runCode} runs code.
   *
   * @param command - a line for bash, or a program and its arguments, which no shell then
   * interprets.
   */
  async runCommand(
    command: string | readonly string[],
    options: RunOptions = {},
  ): Promise<Execution> {
    const line = typeof command === "string" ? command : command.map(quoted).join(" ");
    return this.runCode(line, { ...options, language: "bash" });
  }

  // The everyday part of `files`.

  /** Writes a file: short for `files.write`. */
  async writeFile(path: string, data: Data, options: CallOptions = {}): Promise<FileEntry> {
    return this.files.write(path, data, options);
  }

  /** Reads a file: short for `files.read`. */
  async readFile(path: string, options?: CallOptions & { format?: "text" }): Promise<string>;
  async readFile(path: string, options: CallOptions & { format: "bytes" }): Promise<Uint8Array>;
  async readFile(path: string, options: CallOptions & { format: "stream" }): Promise<ByteStream>;
  async readFile(
    path: string,
    options: CallOptions & { format?: ReadFormat } = {},
  ): Promise<string | Uint8Array | ByteStream> {
    return this.files.read(path, options as CallOptions & { format: "stream" });
  }

  /** Returns the content of a folder: short for `files.list`. */
  async listFiles(
    path = "/workspace",
    options: CallOptions & {
      /** How many levels to go down, at most 32. Default: 1. */
      depth?: number;
    } = {},
  ): Promise<FileList> {
    return this.files.list(path, options);
  }

  /** Deletes one file: `files.remove` without `recursive`. */
  async deleteFile(path: string, options: CallOptions = {}): Promise<void> {
    await this.files.remove(path, { ...options, recursive: false });
  }

  // Its life and its saved states.

  /**
   * Returns its present state; for some days also after its end.
   *
   * @throws {@link NotFoundError} its record was deleted.
   */
  async info(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#client.call(look(this.sandboxId), options);
  }

  /**
   * Changes it, running or paused. Absent options stay as they are. All changes happen, or none.
   *
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link ConflictError} it cannot change while it runs; the message says why.
   */
  async update(options: SandboxChanges & CallOptions): Promise<SandboxInfo> {
    return this.#client.call(update(this.sandboxId, options), options);
  }

  /** Returns the TCP ports that programs inside listen on, by port and address. */
  async openPorts(
    options: CallOptions & {
      /** Also the ports of the agent in the Sandbox. */
      agent?: boolean;
    } = {},
  ): Promise<OpenPort[]> {
    const query = queryOf({ all: options.agent });
    return this.#client.call(get(this.#path("ports"), openPorts, { query }), options);
  }

  /** Returns how one port is reached, whether something listens or not. */
  async port(port: number, options: CallOptions = {}): Promise<PortAccess> {
    return this.#client.call(get(this.#path(`ports/${whole(port)}`), portAccess), options);
  }

  /**
   * Changes how one port is reached, at once; the others stay as they are.
   *
   * @param port - the port of the service.
   * @throws {@link InvalidRequestError} nothing to change, or a port of the agent.
   */
  async setPort(
    port: number,
    options: CallOptions & {
      /** Whether it asks for a token. Default: as it was. */
      private?: boolean;
      /** Whether it speaks TLS inside. Default: as it was. */
      tls?: boolean;
    },
  ): Promise<PortAccess> {
    const body = { private: options.private, tls: options.tls };
    const call = post(this.#path(`ports/${whole(port)}`), portAccess, body, {
      method: "PUT",
      repeatable: true,
    });
    return this.#client.call(call, options);
  }

  /**
   * Returns a link to one port, and the token in it. Anyone with the link can use it.
   *
   * @param port - the port of the service.
   */
  async portLink(
    port: number,
    options: CallOptions & {
      /** Up to a week. Default: an hour. */
      expiresInSeconds?: number;
    } = {},
  ): Promise<PortLink> {
    const body = { expires_in_seconds: options.expiresInSeconds };
    const path = this.#path(`ports/${whole(port)}/sign`);
    return this.#client.call(post(path, portLink, body, { repeatable: true }), options);
  }

  /**
   * Moves the deadline to this many seconds from now, nearer or farther.
   *
   * @throws {@link InvalidRequestError} not above 0, or more than 86,400.
   */
  async setTimeout(seconds: number, options: CallOptions = {}): Promise<SandboxInfo> {
    const body = { timeout_seconds: seconds } satisfies Schemas["TimeoutRequest"];
    const call = post(this.#path("timeout"), oneSession, body, { repeatable: true });
    return this.#client.call(call, options);
  }

  /** Restarts its time: the timeouts count from now; none comes nearer. */
  async touch(options: CallOptions = {}): Promise<SandboxInfo> {
    const call = post(this.#path("touch"), oneSession, {}, { repeatable: true });
    return this.#client.call(call, options);
  }

  /**
   * Saves it and frees its machine; resolves when the saved state is safe.
   *
   * It resumes with its memory, processes, terminals and files, at the next call that reaches into
   * it, unless it was made with `autoResume: false`. Connections to the outside break. A paused
   * Sandbox stays as it is. If it cannot be saved, it keeps running.
   *
   * @throws {@link UnsupportedError} the engine cannot save its programs.
   */
  async pause(options: MemoryOptions = {}): Promise<SandboxInfo> {
    const body = { memory: onlyFalse(options.memory) } satisfies Schemas["PauseRequest"];
    // Pausing it again changes nothing.
    return this.#client.call(this.#slow("pause", body), options);
  }

  /**
   * Resumes it and resolves when it runs; its time begins again. With `memory: false` it boots from
   * its files, without its programs.
   *
   * @throws {@link ConflictError} its saved state is damaged or gone; it stays paused.
   */
  async resume(options: MemoryOptions = {}): Promise<SandboxInfo> {
    const body = { memory: onlyFalse(options.memory) } satisfies Schemas["ResumeRequest"];
    return this.#client.call(this.#slow("resume", body), options);
  }

  #slow(what: string, body: object): Call<SandboxInfo> {
    return post(this.#path(what), oneSession, body, {
      readSeconds: START_SECONDS,
      repeatable: true,
    });
  }

  /**
   * Starts copies of it, which continue from its present state. It keeps running. Each copy has its
   * own ID and randomness.
   *
   * @param count - how many, up to 100.
   * @throws {@link ForkError} some forks do not run; the error has the others.
   * @throws {@link ExhaustedError} a quota or the server's capacity is used up.
   */
  async fork(count = 1, options: ForkOptions = {}): Promise<Sandbox[]> {
    const made: Sandbox[] = [];
    const errors: CloudSandboxError[] = [];
    for (const fork of await this.#client.call(forks(this.sandboxId, count, options), options)) {
      if (fork instanceof CloudSandboxError) errors.push(fork);
      else made.push(new Sandbox(this.#client, fork.sandboxId));
    }
    const [first, ...rest] = errors;
    if (first) throw new ForkError(made, [first, ...rest]);
    return made;
  }

  /**
   * Saves it in a Snapshot that is kept. It stops for a moment, then keeps running.
   *
   * The Snapshot stays until `client.snapshots.delete`, also when the Sandbox ends. Go back to it
   * with {@link rollback}, or start others from it with `Sandbox.create({ snapshot })`.
   *
   * @param name - a name, unique among the Snapshots of this Sandbox. Default: none.
   * @throws {@link ConflictError} the name is in use.
   */
  async snapshot(
    name?: string,
    options: MemoryOptions & {
      /** Take one for this key. Default: a new key. */
      idempotencyKey?: string;
    } = {},
  ): Promise<SnapshotInfo> {
    return this.#client.call(taken(this.sandboxId, name, options), options);
  }

  /**
   * Returns its Snapshots and the ones it came from, oldest first. `parentId` makes it a tree;
   * `current` marks where the Sandbox is.
   */
  async history(options: CallOptions = {}): Promise<SnapshotInfo[]> {
    const decode = (answer: Answer) => snapshotPage(answer).items;
    return this.#client.call(get(this.#path("snapshots"), decode), options);
  }

  /**
   * Goes back to one of its Snapshots and resolves when it runs. Its present state is lost, unless
   * a Snapshot was taken before. Earlier process IDs become invalid.
   *
   * @param snapshot - the Snapshot, or its ID or name.
   * @throws {@link NotFoundError} its history has no such Snapshot.
   */
  async rollback(snapshot: SnapshotInfo | string, options: CallOptions = {}): Promise<SandboxInfo> {
    const body = { snapshot_id: snapshotIdOf(snapshot) } satisfies Schemas["RollbackRequest"];
    const call = post(this.#path("rollback"), oneSession, body, { readSeconds: START_SECONDS });
    return this.#client.call(call, options);
  }

  /**
   * Ends the Sandbox now: its processes stop and its files are gone. Returns false when it had
   * ended already.
   */
  async kill(options: CallOptions = {}): Promise<boolean> {
    try {
      await this.#client.call(remove(pathOf(this.sandboxId), nothing), options);
    } catch (err) {
      if (err instanceof NotFoundError) return false;
      throw err;
    }
    return true;
  }

  /** Ends it, as {@link kill} does. */
  async [asyncDispose](): Promise<void> {
    await this.kill();
  }

  #path(below: string): string {
    return `${pathOf(this.sandboxId)}/${below}`;
  }
}

/** Asks for copies of a Sandbox, once for each key. Each is a Sandbox or an error. */
function forks(
  sandboxId: string,
  count: number,
  options: ForkOptions,
): Call<(SandboxInfo | CloudSandboxError)[]> {
  const body = {
    count,
    name: options.name,
    timeout_seconds: options.timeoutSeconds,
    idle_timeout_seconds: options.idleTimeoutSeconds,
    on_timeout: options.onTimeout,
    auto_resume: options.autoResume,
    network: options.network,
    secrets: secretsOf(options.secrets),
    keep_secrets: whenTrue(options.keepSecrets),
    metadata: options.metadata,
    env: options.env,
  } satisfies Schemas["ForkRequest"];
  const decode = (answer: Answer) => answer.json<Schemas["Forks"]>().list("forks").map(forked);
  const call = post(`${pathOf(sandboxId)}/fork`, decode, body, { readSeconds: START_SECONDS });
  return once(call, options.idempotencyKey);
}

function forked(obj: Wire<Schemas["Forks"]["forks"][number]>): SandboxInfo | CloudSandboxError {
  const error = obj.object("error");
  if (error) return failures.ofObject(error as Wire<failures.WireError>);
  return sessionOf(obj as Wire<Schemas["Sandbox"]>);
}

function taken(
  sandboxId: string,
  name: string | undefined,
  options: MemoryOptions & { idempotencyKey?: string },
): Call<SnapshotInfo> {
  const body = { name, memory: onlyFalse(options.memory) } satisfies Schemas["SnapshotRequest"];
  const path = `${pathOf(sandboxId)}/snapshots`;
  const call = post(path, oneSnapshot, body, { readSeconds: START_SECONDS });
  return once(call, options.idempotencyKey);
}

function onlyFalse(value: boolean | undefined): false | undefined {
  return value === false ? false : undefined;
}

function whole(port: number): number {
  if (!Number.isInteger(port)) throw new TypeError(`a port is a whole number, not ${port}`);
  return port;
}

/** Writes an argument so that a shell reads it as it is. */
function quoted(argument: string): string {
  if (/^[\w@%+=:,./-]+$/.test(argument)) return argument;
  return `'${argument.replaceAll("'", `'"'"'`)}'`;
}
