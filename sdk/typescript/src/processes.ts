// Processes that outlive their client.

import {
  type Answer,
  type Call,
  get,
  nothing,
  once,
  post,
  queryOf,
  READ_SECONDS,
  remove,
  request,
  segment,
  whenTrue,
} from "./api/call.js";
import type { Event } from "./api/sse.js";
import { decode, encode, headerInteger, type Schemas, Wire, type Word } from "./api/wire.js";
import type { Client } from "./client.js";
import { clock } from "./clock.js";
import { streamOf } from "./data.js";
import { asyncDispose } from "./dispose.js";
import { CloudSandboxError, SandboxTimeoutError } from "./errors.js";
import { type Execution, type ExecutionError, inputOf } from "./execution.js";
import { Follower } from "./following.js";
import type { CallOptions } from "./options.js";
import { concat } from "./streams.js";
import { Terminal } from "./terminal.js";

/** How large a terminal is, in characters. */
export interface TerminalSize {
  /** Width. */
  cols: number;
  /** Height. */
  rows: number;
}

/** One process at one moment, as the Sandbox describes it. */
export interface ProcessInfo {
  /** Its ID in its Sandbox. */
  processId: string;
  /** The name it was started with; empty if none. */
  name: string;
  /** Whether it runs. */
  state: Word<"running" | "ended">;
  /** Once it has ended, as of an {@link Execution}; empty before. */
  status: Word<NonNullable<Schemas["Process"]["status"]> | "">;
  /** Whether it runs no more. */
  ended: boolean;
  /** Whether it has ended by itself with exit code 0. */
  ok: boolean;
  /**
   * Its exit status; 128 and the number of the signal that ended it; 124 after a timeout.
   * `undefined` while it runs.
   */
  exitCode: number | undefined;
  /** Why the status is not `"ok"`; `undefined` if it is, or while it runs. */
  error: ExecutionError | undefined;
  /** Its number inside the Sandbox. */
  pid: number;
  /** Its command line, at most 1 KiB of it. */
  command: string;
  /** Where it was started. */
  cwd: string;
  /** Whose it is. */
  user: string;
  /** Size of its terminal; `undefined` if it has none. */
  pty: TerminalSize | undefined;
  /** The shell session it belongs to; empty if none. */
  shell: string;
  /** It is ended when it runs longer; `undefined` for no limit. */
  timeoutSeconds: number | undefined;
  /** When it began. */
  startedAt: Date | undefined;
  /** When it ended. */
  endedAt: Date | undefined;
  /** Offset of the first byte of output that is kept. */
  outputStart: number;
  /** How many bytes it has written in all. */
  outputEnd: number;
  /** Grows when the Sandbox goes back to an earlier state. */
  timeline: number;
}

/** A piece of a process's output. */
export interface OutputPiece {
  /** The stream; `"dropped"` for bytes that are no longer kept. */
  stream: Word<"stdout" | "stderr" | "dropped">;
  /** The piece; bytes that are not UTF-8 are replaced by U+FFFD. */
  text: string;
  /** The bytes that `text` stands for. */
  data: Uint8Array;
  /** The offset of its first byte in all output of the process. */
  offset: number;
  /** The offset of the next byte. */
  nextOffset: number;
}

/** The output of a process from an offset on. */
export interface ProcessOutput {
  /** The bytes. */
  data: Uint8Array;
  /** The bytes as text; bytes that are not UTF-8 are replaced by U+FFFD. */
  text: string;
  /** The offset of the next byte. */
  nextOffset: number;
  /** How many bytes are left out, because they are no longer kept. */
  dropped: number;
  /** The process has ended, so this is the last of it. */
  ended: boolean;
}

/** The result of waiting. */
export interface WaitResult {
  /** The condition was met. Otherwise the time was over, or the process had ended. */
  met: boolean;
  /** The process afterwards. */
  process: ProcessInfo;
  /** The status of the last HTTP answer. */
  httpStatus: number | undefined;
  /** The line that matched, at most 4 KiB of it. */
  line: string;
  /** The offset after that line. */
  offset: number | undefined;
}

/** How a process is started. */
export interface ProcessOptions extends CallOptions {
  /** The user whose rights it has. Default: the Sandbox's user. */
  user?: string;
  /** Its working directory. Default: the Sandbox's. */
  cwd?: string;
  /** Environment variables for it alone. */
  env?: Readonly<Record<string, string>>;
  /** End it, with all it started, when it runs longer. Default: no limit. */
  timeoutSeconds?: number;
  /** Its standard input, up to 1 MiB, followed by the end of input. */
  stdin?: string | Uint8Array;
  /**
   * A shell session: commands with the same one share a working directory, variables and functions,
   * one after the other.
   */
  shell?: string;
  /** Start it once for this key, also when another program asks. Default: a new one. */
  idempotencyKey?: string;
}

/** How a process in the background is started. */
export interface StartOptions extends ProcessOptions {
  /**
   * Stands for its ID, unique among processes that run: 1 to 63 of `a-z`, `0-9`, `.`, `_` and `-`.
   */
  name?: string;
  /** Keep its input open for {@link Process.write}. */
  keepStdin?: boolean;
  /** Give it a terminal of this size; all it writes is standard output then. */
  pty?: TerminalSize;
}

/** How a command is run to its end. */
export interface RunToEndOptions extends ProcessOptions {
  /** Called with each piece of standard output as it comes, and waited for. */
  onStdout?: (text: string) => unknown;
  /** The same for standard error. */
  onStderr?: (text: string) => unknown;
  /**
   * How much of each stream the execution keeps; the handlers get all. Default: 1 MiB. `truncated`
   * counts output that came too fast to be followed.
   */
  maxOutputBytes?: number;
}

/** How a terminal is opened. */
export interface TerminalOptions
  extends Pick<StartOptions, "name" | "user" | "cwd" | "env" | "timeoutSeconds" | "signal"> {
  /** Width, in characters. Default: 80. */
  cols?: number;
  /** Height, in characters. Default: 24. */
  rows?: number;
}

/** Which output is read. */
export interface OutputOptions extends CallOptions {
  /**
   * The first byte, counted in both streams together; below 0, that many from the end. Default: 0.
   */
  start?: number;
  /** Only this stream. Offsets still count both streams. */
  stream?: "stdout" | "stderr";
}

/** How long something is waited for. */
export interface WaitOptions extends CallOptions {
  /** Wait no longer, up to 3,600. Default: 60. */
  timeoutSeconds?: number;
}

const PATH = "/api/v1/processes";
const YIELD_SECONDS = 10;
const MAX_OUTPUT_BYTES = 1 << 20;
const REPLAY_BYTES = 64 << 10;
const MAX_WRITE_BYTES = 1 << 20;
// Writing waits for a process that does not read, up to 30 s.
const WRITE_SECONDS = 90;
const MAX_WAIT_SECONDS = 3600;

/**
 * The processes of a Sandbox: `sandbox.processes`.
 *
 * A process outlives its client, the connection and the server. The Sandbox keeps the last 16 MiB
 * of its output, which can be read from any byte.
 */
export class Processes {
  readonly #client: Client;
  readonly #sandboxId: string;

  /** @internal */
  constructor(client: Client, sandboxId: string) {
    this.#client = client;
    this.#sandboxId = sandboxId;
  }

  /**
   * Starts a process in the background. It is started once, also when the call is tried again.
   *
   * @param command - a line for bash, or a program and its arguments, which no shell interprets.
   * With `pty` none is a login shell.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link ConflictError} the name is in use, the shell is busy, or the key was used for
   * something else.
   * @throws {@link ExhaustedError} too many processes run.
   */
  async start(command?: string | readonly string[], options: StartOptions = {}): Promise<Process> {
    const { info } = await this.#client.call(start(this.#sandboxId, command, options), options);
    return new Process(this.#client, this.#sandboxId, info);
  }

  /**
   * Runs a command to its end, through broken connections and restarts.
   *
   * Like `runCommand`, but without a limit of time, and in a shell session if wanted. An aborted
   * `signal`, or an error of a handler, ends the process.
   *
   * @param command - as for {@link start}.
   * @throws {@link InvalidRequestError} a value breaks a rule.
   * @throws {@link ConflictError} the shell is busy, or the key was used for something else.
   * @throws {@link ConnectionFailedError} the server was away for a minute.
   */
  async run(
    command: string | readonly string[],
    options: RunToEndOptions = {},
  ): Promise<Execution> {
    const { onStdout, onStderr, signal } = options;
    const keeps = options.maxOutputBytes ?? MAX_OUTPUT_BYTES;
    const started = await this.#client.call(
      start(this.#sandboxId, command, {
        ...options,
        yieldSeconds: onStdout || onStderr ? 0 : YIELD_SECONDS,
        maxOutputBytes: Math.min(keeps, MAX_OUTPUT_BYTES),
      }),
      options,
    );
    const kept = new Kept(keeps);
    kept.add("stdout", started.stdout);
    kept.add("stderr", started.stderr);
    if (started.info.ended && started.offset >= started.info.outputEnd) {
      return kept.execution(started.info);
    }
    const process = new Process(this.#client, this.#sandboxId, started.info);
    try {
      for await (const piece of process.follow({ start: started.offset, ...only(signal) })) {
        if (piece.stream === "dropped") kept.lose(piece.nextOffset - piece.offset);
        kept.add(piece.stream, piece.data);
        if (piece.stream === "stdout") await onStdout?.(piece.text);
        else if (piece.stream === "stderr") await onStderr?.(piece.text);
      }
      return kept.execution(process.info);
    } catch (err) {
      await process.kill().catch((kill: unknown) => {
        if (!(kill instanceof CloudSandboxError)) throw kill; // the first error matters more
      });
      throw err;
    }
  }

  /**
   * Starts a process with a terminal and attaches to it.
   *
   * @param command - as for {@link start}. Default: a login shell.
   */
  async openTerminal(
    command?: string | readonly string[],
    options: TerminalOptions = {},
  ): Promise<Terminal> {
    const { cols = 80, rows = 24, ...rest } = options;
    const process = await this.start(command, { ...rest, pty: { cols, rows } });
    return process.attach({ start: 0, ...only(options.signal) });
  }

  /** Returns the running processes and the last ended ones, oldest first. */
  async list(
    options: CallOptions & {
      /** Only these. */
      state?: "running" | "ended";
    } = {},
  ): Promise<ProcessInfo[]> {
    const query = queryOf({ sandbox_id: this.#sandboxId, state: options.state });
    const decodeAll = (answer: Answer) =>
      answer.json<Schemas["ProcessList"]>().list("processes").map(processOf);
    return this.#client.call(get(PATH, decodeAll, { query }), options);
  }

  /**
   * Returns a process by its ID or name.
   *
   * @throws {@link NotFoundError} no such process exists.
   * @throws {@link ConflictError} the Sandbox went back to a state before it.
   */
  async get(processId: string, options: CallOptions = {}): Promise<Process> {
    const info = await this.#client.call(look(this.#sandboxId, processId), options);
    return new Process(this.#client, this.#sandboxId, info);
  }
}

/** One process. */
export class Process {
  /** Its last known state; see {@link refresh}. */
  info: ProcessInfo;

  readonly #client: Client;
  readonly #sandboxId: string;

  /** @internal */
  constructor(client: Client, sandboxId: string, info: ProcessInfo) {
    this.#client = client;
    this.#sandboxId = sandboxId;
    this.info = info;
  }

  /** Its ID in its Sandbox. */
  get processId(): string {
    return this.info.processId;
  }

  /** Returns its present state. */
  async refresh(options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#known(look(this.#sandboxId, this.processId), options);
  }

  async #known(call: Call<ProcessInfo>, options: CallOptions): Promise<ProcessInfo> {
    this.info = await this.#client.call(call, options);
    return this.info;
  }

  /** Returns its output so far. */
  async output(options: OutputOptions = {}): Promise<ProcessOutput> {
    const query = this.#query({ from: options.start ?? 0, stream: options.stream });
    return this.#client.call(get(this.#path("output"), outputOf, { query }), options);
  }

  /**
   * Returns its output as it comes, until it has ended. When the connection breaks, it resumes
   * where it stopped.
   *
   * ```ts
   * for await (const piece of process.follow()) {
   *   console.log(piece.text);
   * }
   * ```
   */
  follow(options: OutputOptions = {}): Output {
    const ask = (offset: number) =>
      get(this.#path("output"), nothing, {
        query: this.#query({ from: offset, follow: true, stream: options.stream }),
        headers: { Accept: "text/event-stream" },
      });
    return new Output(this.#client, this, ask, options);
  }

  /**
   * Waits for its end, and returns its final state.
   *
   * @throws {@link SandboxTimeoutError} it still runs.
   */
  async wait(
    options: CallOptions & {
      /** Wait no longer. Default: no limit. */
      timeoutSeconds?: number;
    } = {},
  ): Promise<ProcessInfo> {
    const { timeoutSeconds } = options;
    const end =
      timeoutSeconds === undefined ? Number.POSITIVE_INFINITY : clock.now() + timeoutSeconds;
    for (;;) {
      const left = Math.min(MAX_WAIT_SECONDS, end - clock.now());
      if (left <= 0) throw new SandboxTimeoutError("the process still runs");
      const { met } = await this.#wait("exit", Math.max(left, 0.001), options);
      if (met) return this.info;
    }
  }

  /**
   * Waits until something listens at a TCP port on the loopback address.
   *
   * @returns `met` is false when the time was over, or the process had ended.
   */
  async waitForPort(port: number, options: WaitOptions = {}): Promise<WaitResult> {
    return this.#wait(`port:${port}`, options.timeoutSeconds ?? 60, options);
  }

  /**
   * Waits until an HTTP request is answered with a status below 500.
   *
   * @param port - where, on the loopback address.
   * @param path - the path of the request.
   * @returns `met` is false when the time was over, or the process had ended.
   */
  async waitForHttp(port: number, path = "/", options: WaitOptions = {}): Promise<WaitResult> {
    const what = `http:${port}/${path.replace(/^\//, "")}`;
    return this.#wait(what, options.timeoutSeconds ?? 60, options);
  }

  /**
   * Waits until a line of output matches, also of earlier output.
   *
   * @param pattern - a regular expression (RE2).
   * @returns `met` is false when the time was over, or the process had ended.
   * @throws {@link InvalidRequestError} the pattern cannot be read.
   */
  async waitForLog(pattern: string, options: WaitOptions = {}): Promise<WaitResult> {
    return this.#wait(`log:${pattern}`, options.timeoutSeconds ?? 60, options);
  }

  async #wait(what: string, seconds: number, options: CallOptions): Promise<WaitResult> {
    const query = this.#query({ for: what, timeout_seconds: Number(seconds.toFixed(3)) });
    const call = get(this.#path("wait"), waited, { query, readSeconds: seconds + READ_SECONDS });
    const result = await this.#client.call(call, options);
    this.info = result.process;
    return result;
  }

  /**
   * Writes to its input, and resolves when the process has all of it.
   *
   * @param data - up to 1 MiB; text is sent as UTF-8.
   * @throws {@link ConflictError} it has ended, or its input is closed.
   * @throws {@link SandboxTimeoutError} it did not read for 30 s; the message says how much it got.
   * @throws {@link ConnectionFailedError} the connection broke; the process may have got a part.
   */
  async write(
    data: string | Uint8Array,
    options: CallOptions & {
      /** End its input afterwards; a terminal is sent Ctrl-D. */
      eof?: boolean;
    } = {},
  ): Promise<void> {
    const call = request("POST", this.#path("stdin"), nothing, {
      query: this.#query({ eof: options.eof }),
      body: typeof data === "string" ? encode(data) : new Uint8Array(data),
      headers: { "Content-Type": "application/octet-stream" },
      readSeconds: WRITE_SECONDS,
    });
    await this.#client.call(call, options);
  }

  /** Its input as a Web Stream, for pieces of any size; closing it ends the input. */
  get stdin(): WritableStream<string | Uint8Array> {
    return new WritableStream<string | Uint8Array>({
      write: async (piece) => {
        const data = typeof piece === "string" ? encode(piece) : piece;
        for (let at = 0; at < data.length; at += MAX_WRITE_BYTES) {
          await this.write(data.subarray(at, at + MAX_WRITE_BYTES));
        }
      },
      close: () => this.closeStdin(),
    });
  }

  /** Ends its input; a terminal is sent Ctrl-D. */
  async closeStdin(options: CallOptions = {}): Promise<void> {
    await this.write("", { ...options, eof: true });
  }

  /**
   * Sends a signal to it and its group. For a process with a terminal, INT, QUIT and TSTP go to its
   * foreground job, as from the keyboard.
   *
   * @param name - such as `"INT"`, `"SIGTERM"` or 15.
   * @throws {@link InvalidRequestError} no such signal exists.
   */
  async signal(name: string | number, options: CallOptions = {}): Promise<ProcessInfo> {
    const body = { signal: name } satisfies Schemas["SignalRequest"];
    const call = post(this.#path("signal"), oneProcess, body, { query: this.#query() });
    return this.#known(call, options);
  }

  /**
   * Ends it and everything it started: SIGTERM, and SIGKILL a second later. One that has ended is
   * left as it is; its output stays.
   */
  async kill(options: CallOptions = {}): Promise<ProcessInfo> {
    return this.#known(remove(this.#path(), oneProcess, { query: this.#query() }), options);
  }

  /**
   * Changes the size of its terminal, in characters.
   *
   * @throws {@link ConflictError} it has none.
   */
  async resize(cols: number, rows: number, options: CallOptions = {}): Promise<ProcessInfo> {
    const body = { cols, rows } satisfies Schemas["TerminalSize"];
    const query = this.#query();
    const call = post(this.#path("resize"), oneProcess, body, { query, repeatable: true });
    return this.#known(call, options);
  }

  /** Attaches to its input and output. */
  async attach(
    options: CallOptions & {
      /**
       * Begin with this byte of output; below 0, that many from the end. Default: the last 64 KiB.
       */
      start?: number;
    } = {},
  ): Promise<Terminal> {
    const ask = (offset: number) =>
      get(this.#path("attach"), nothing, { query: this.#query({ from: offset }) });
    const start = options.start ?? -REPLAY_BYTES;
    return Terminal.open(this.#client, this.processId, ask, this.#look(), start, options.signal);
  }

  #look(): Call<ProcessInfo> {
    return look(this.#sandboxId, this.processId);
  }

  #path(below = ""): string {
    return pathOf(this.processId) + (below && `/${below}`);
  }

  #query(more: Record<string, string | number | boolean | undefined> = {}) {
    return queryOf({ sandbox_id: this.#sandboxId, ...more });
  }
}

/**
 * The output of a process as it comes; see {@link Process.follow}. Leaving the loop early stops
 * following, and the process keeps running.
 */
export class Output implements AsyncIterable<OutputPiece>, AsyncDisposable {
  readonly #process: Process;
  readonly #follower: Follower;
  #offset: number;
  #ended = false;

  /** @internal */
  constructor(
    client: Client,
    process: Process,
    ask: (offset: number) => Call<void>,
    options: OutputOptions,
  ) {
    this.#process = process;
    this.#offset = options.start ?? 0;
    this.#follower = new Follower(client, () => ask(this.#offset), options.signal);
  }

  /** The offset of the next byte. */
  get offset(): number {
    return this.#offset;
  }

  /** The bytes as a Web Stream; cancelling it stops following. */
  get readable(): ReadableStream<Uint8Array> {
    return streamOf(bytesOf(this));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<OutputPiece, void, undefined> {
    try {
      while (!this.#ended) {
        const event = await this.#follower.next();
        if (!event) return;
        if (event.name === "start" || event.name === "end") {
          this.#process.info = processOf(Wire.parse(event.data));
          this.#ended = event.name === "end";
          continue;
        }
        const piece = pieceOf(event);
        this.#offset = piece.nextOffset;
        yield piece;
      }
    } finally {
      if (this.#ended) await this.#follower.finish();
      await this.close();
    }
  }

  /** Stops following; the process keeps running. */
  async close(): Promise<void> {
    await this.#follower.close();
  }

  async [asyncDispose](): Promise<void> {
    await this.close();
  }
}

async function* bytesOf(output: Output): AsyncGenerator<Uint8Array, void, undefined> {
  for await (const { stream, data } of output) if (stream !== "dropped") yield data;
}

/** The beginning of each stream, and how much more there was. */
class Kept {
  readonly #pieces: Record<"stdout" | "stderr", Uint8Array[]> = { stdout: [], stderr: [] };
  readonly #left: Record<"stdout" | "stderr", number>;
  readonly #dropped = { stdout: 0, stderr: 0 };

  constructor(max: number) {
    this.#left = { stdout: max, stderr: max };
  }

  /** Keeps the data within the limit. */
  add(stream: string, data: Uint8Array): void {
    if ((stream !== "stdout" && stream !== "stderr") || data.length === 0) return;
    const left = this.#left[stream];
    const kept = data.length <= left ? data : wholeOf(data.subarray(0, left));
    this.#pieces[stream].push(kept);
    // Nothing is kept after a cut, however small it is.
    this.#left[stream] = kept.length === data.length ? left - kept.length : 0;
    this.#dropped[stream] += data.length - kept.length;
  }

  /** Counts bytes that are kept no more; of which stream is not known. */
  lose(size: number): void {
    this.#dropped.stdout += size;
  }

  /** Returns the execution of the process. */
  execution(info: ProcessInfo): Execution {
    const stdoutBytes = concat(this.#pieces.stdout);
    const stderrBytes = concat(this.#pieces.stderr);
    const { startedAt, endedAt } = info;
    return {
      status: info.status,
      ok: info.ok,
      stdout: decode(stdoutBytes),
      stderr: decode(stderrBytes),
      stdoutBytes,
      stderrBytes,
      exitCode: info.exitCode,
      results: [],
      result: undefined,
      error: info.error,
      durationMs: startedAt && endedAt ? endedAt.getTime() - startedAt.getTime() : 0,
      truncated: {
        stdoutBytesDropped: this.#dropped.stdout,
        stderrBytesDropped: this.#dropped.stderr,
        resultsDropped: 0,
      },
      contextId: undefined,
      executionCount: undefined,
      contextRestarted: false,
      contextEnded: false,
      processId: info.processId,
      nextOffset: info.outputEnd,
    };
  }
}

/** Returns data without the beginning of a character that was cut at its end. */
export function wholeOf(data: Uint8Array): Uint8Array {
  // A character has up to four bytes; those after the first are 10xxxxxx.
  for (let back = 1; back <= Math.min(3, data.length); back++) {
    const byte = data[data.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return size > back ? data.subarray(0, data.length - back) : data;
  }
  return data;
}

/** A process, and its output until its start was answered. */
interface Started {
  info: ProcessInfo;
  stdout: Uint8Array;
  stderr: Uint8Array;
  offset: number;
}

/** Starts a process, once for each key; waits for its end as long as yieldSeconds. */
function start(
  sandboxId: string,
  command: string | readonly string[] | undefined,
  options: StartOptions & { yieldSeconds?: number; maxOutputBytes?: number },
): Call<Started> {
  const { yieldSeconds = 0, pty } = options;
  const body = {
    sandbox_id: sandboxId,
    command: typeof command === "string" ? command : undefined,
    argv: command === undefined || typeof command === "string" ? undefined : [...command],
    name: options.name,
    user: options.user,
    cwd: options.cwd,
    env: options.env,
    background: whenTrue(yieldSeconds <= 0),
    yield_ms: yieldSeconds > 0 ? yieldSeconds * 1000 : undefined,
    max_output_bytes: options.maxOutputBytes,
    timeout_seconds: options.timeoutSeconds,
    ...inputOf(options.stdin),
    keep_stdin: whenTrue(options.keepStdin),
    pty: pty && { cols: pty.cols, rows: pty.rows },
    shell: options.shell,
  } satisfies Schemas["StartProcessRequest"];
  const call = post(PATH, startedOf, body, { readSeconds: yieldSeconds + READ_SECONDS });
  return once(call, options.idempotencyKey);
}

function startedOf(answer: Answer): Started {
  const obj = answer.json<Schemas["Process"]>();
  return {
    info: processOf(obj),
    stdout: obj.bytes("stdout_base64") ?? encode(obj.text("stdout")),
    stderr: obj.bytes("stderr_base64") ?? encode(obj.text("stderr")),
    offset: obj.count("offset"),
  };
}

function look(sandboxId: string, processId: string): Call<ProcessInfo> {
  return get(pathOf(processId), oneProcess, { query: { sandbox_id: sandboxId } });
}

function pathOf(processId: string): string {
  return `${PATH}/${segment(processId, "process ID")}`;
}

function only(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal ? { signal } : {};
}

function oneProcess(answer: Answer): ProcessInfo {
  return processOf(answer.json());
}

/** Decodes one process. */
export function processOf(obj: Wire<Schemas["Process"]>): ProcessInfo {
  const error = obj.object("error");
  const pty = obj.object("pty");
  const state = obj.text("state");
  const status = obj.text("status");
  return {
    processId: obj.required("process_id"),
    name: obj.text("name"),
    state,
    status,
    ended: state === "ended",
    ok: status === "ok",
    exitCode: obj.integer("exit_code"),
    error: error && { name: error.text("name"), message: error.text("message"), traceback: "" },
    pid: obj.count("pid"),
    command: obj.text("command"),
    cwd: obj.text("cwd"),
    user: obj.text("user"),
    pty: pty && { cols: pty.count("cols"), rows: pty.count("rows") },
    shell: obj.text("shell"),
    timeoutSeconds: obj.number("timeout_seconds"),
    startedAt: obj.time("started_at"),
    endedAt: obj.time("ended_at"),
    outputStart: obj.count("output_start"),
    outputEnd: obj.count("output_end"),
    timeline: obj.count("timeline"),
  };
}

/** Decodes a piece of output, or the word that some was dropped. */
function pieceOf(event: Event): OutputPiece {
  const obj = Wire.parse<{ offset: number; next_offset: number; text: string; base64: string }>(
    event.data,
  );
  const text = obj.text("text");
  const offset = obj.count("offset");
  return {
    stream: event.name,
    text,
    data: obj.bytes("base64") ?? encode(text),
    offset,
    nextOffset: obj.integer("next_offset") ?? offset,
  };
}

function outputOf(answer: Answer): ProcessOutput {
  return {
    data: answer.content,
    text: decode(answer.content),
    nextOffset: headerInteger(answer.headers, "X-Next-Offset"),
    dropped: headerInteger(answer.headers, "X-Dropped"),
    ended: answer.headers.get("X-Process-State") === "ended",
  };
}

function waited(answer: Answer): WaitResult {
  const obj = answer.json<Schemas["WaitResult"]>();
  return {
    met: obj.flag("met"),
    process: processOf(obj.object("process") ?? new Wire({})),
    httpStatus: obj.integer("http_status"),
    line: obj.text("line"),
    offset: obj.integer("offset"),
  };
}
