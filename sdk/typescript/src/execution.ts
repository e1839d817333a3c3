// Running code to its end.

import { type Call, newKey, nothing, post, READ_SECONDS, remove, whenTrue } from "./api/call.js";
import { encode, type Schemas, toBase64, Wire, type Word } from "./api/wire.js";
import type { CallOptions } from "./options.js";

/** Why code failed, where the server can tell. */
export interface ExecutionError {
  /**
   * The class of the exception in a context, or a word such as `"exit_code"`, `"signal"` or
   * `"timeout"`.
   */
  name: string;
  /** One sentence. */
  message: string;
  /** Text for people; empty if there is none. */
  traceback: string;
}

/** How much output is missing; zeros when it is complete. */
export interface Truncated {
  /** Bytes of standard output. */
  stdoutBytesDropped: number;
  /** Bytes of standard error. */
  stderrBytesDropped: number;
  /** Number of rich results. */
  resultsDropped: number;
}

/** The fields of a {@link Result}. */
export interface ResultFields {
  /** It is the value of the last expression, not of `display`. */
  isMainResult: boolean;
  /** As Python's `repr` gives it. */
  text: string | undefined;
  /** As HTML. */
  html: string | undefined;
  /** As Markdown. */
  markdown: string | undefined;
  /** As an SVG image. */
  svg: string | undefined;
  /** Bytes of a PNG image. */
  png: Uint8Array | undefined;
  /** Bytes of a JPEG image. */
  jpeg: Uint8Array | undefined;
  /** Bytes of a PDF document. */
  pdf: Uint8Array | undefined;
  /** As LaTeX. */
  latex: string | undefined;
  /** As JSON holds it. */
  json: unknown;
  /** As JavaScript. */
  javascript: string | undefined;
  /** The columns of a table with their values. */
  data: unknown;
  /** The content of a chart. */
  chart: unknown;
  /** Other representations by MIME type. */
  extra: Record<string, string>;
}

/** See {@link ResultFields}. */
export interface Result extends ResultFields {}

/**
 * One value that code showed, in one or more representations.
 *
 * The code inside decides about all of it: escape or isolate HTML, SVG and JavaScript before a
 * browser shows them.
 */
// biome-ignore lint/suspicious/noUnsafeDeclarationMerging: the constructor sets every field.
export class Result {
  /** @internal */
  constructor(fields: ResultFields) {
    Object.assign(this, fields);
  }

  /** Returns the plainest text there is. */
  toString(): string {
    return this.text || this.markdown || this.latex || this.html || "";
  }
}

/** The end of code or of a command. It is returned also when the code failed. */
export interface Execution {
  /**
   * `"ok"`, `"error"` (it failed by itself), `"timeout"`, `"oom"`, `"pids"`, `"disk_full"`,
   * `"killed"` or `"paused"`. The last one means that its Sandbox was paused. The code continues as
   * the process `processId` when the Sandbox resumes.
   */
  status: Word<Schemas["ExecuteResult"]["status"]>;
  /** Whether the status is `"ok"`: it ended by itself with exit code 0. */
  ok: boolean;
  /**
   * Its standard output, up to the server's cap. Bytes that are not UTF-8 are replaced by U+FFFD.
   */
  stdout: string;
  /** Its standard error, likewise. */
  stderr: string;
  /** The bytes that `stdout` stands for. */
  stdoutBytes: Uint8Array;
  /** The bytes that `stderr` stands for. */
  stderrBytes: Uint8Array;
  /**
   * Its exit status; 128 and the number of the signal that ended it; 124 after a timeout.
   * `undefined` if the server did not say.
   */
  exitCode: number | undefined;
  /**
   * The results of `display` and the value of the last expression, in languages that keep their
   * state; at most 256.
   */
  results: Result[];
  /** The value of the last expression; `undefined` if it had none. */
  result: Result | undefined;
  /** Why the status is not `"ok"`; `undefined` if it is. */
  error: ExecutionError | undefined;
  /** How long it ran, in milliseconds. */
  durationMs: number;
  /** How much output was cut. */
  truncated: Truncated;
  /** Its context; `undefined` for a new program. */
  contextId: string | undefined;
  /** Number of executions of that context, from 1. */
  executionCount: number | undefined;
  /** Its interpreter is a new one: the variables of the execution before were gone. */
  contextRestarted: boolean;
  /** Its interpreter ended with this execution; the next one gets a fresh one. */
  contextEnded: boolean;
  /** The process of the execution; `undefined` if the server did not say. */
  processId: string | undefined;
  /** The offset at which its later output begins. */
  nextOffset: number | undefined;
}

/** How a command is run. */
export interface RunOptions extends CallOptions {
  /** End it after this long. Default: 60. */
  timeoutSeconds?: number;
  /** Environment variables for it alone. */
  env?: Readonly<Record<string, string>>;
  /** Its working directory. Default: the Sandbox's, or where the context is. */
  cwd?: string;
  /** Its standard input. Default: empty. */
  stdin?: string | Uint8Array;
  /** The user of its process. Default: the Sandbox's user. */
  user?: string;
  /** How much of each stream the execution keeps, up to 16 MiB. Default: 1 MiB. */
  maxOutputBytes?: number;
  /**
   * Called with each piece of standard output as it comes, and waited for. It gets all of the
   * output as text, also the part that the execution cuts. An error that it throws ends the
   * execution, and the call rejects with it.
   */
  onStdout?: (text: string) => unknown;
  /** The same for standard error. */
  onStderr?: (text: string) => unknown;
}

/** A request to run code. */
export interface Asked {
  sandboxId: string;
  code: string;
  language: string | undefined;
  contextId: string | undefined;
  stream: boolean;
}

// The server's default timeout.
const DEFAULT_SECONDS = 60;
const PATH = "/api/v1/execute";

/** Runs code, once for its key; with `stream`, the answer is a stream of events. */
export function execute(asked: Asked, options: RunOptions): Call<Execution> {
  const body = {
    sandbox_id: asked.sandboxId,
    code: asked.code,
    // The server refuses unknown languages.
    language: asked.language as Schemas["ExecuteRequest"]["language"],
    context_id: asked.contextId,
    timeout_seconds: options.timeoutSeconds,
    env: options.env,
    cwd: options.cwd,
    ...inputOf(options.stdin),
    user: options.user,
    max_output_bytes: options.maxOutputBytes,
    stream: whenTrue(asked.stream),
  } satisfies Schemas["ExecuteRequest"];
  return post(PATH, (answer) => executionOf(answer.json()), body, {
    readSeconds: (options.timeoutSeconds ?? DEFAULT_SECONDS) + READ_SECONDS,
    headers: {
      Accept: asked.stream ? "text/event-stream" : "application/json",
      // The key finds the execution again; a repeated request says that it is one.
      "Idempotency-Key": newKey(),
    },
  });
}

/** Asks for an execution that may have begun, after the event with this ID if any. */
export function again<T>(call: Call<T>, eventId = ""): Call<T> {
  return { ...call, headers: { ...call.headers, "Last-Event-ID": eventId || "0.0.0" } };
}

/** Ends the execution that a call has begun. */
export function end(sandboxId: string, call: Call<unknown>): Call<void> {
  const key = call.headers["Idempotency-Key"] ?? "";
  return remove(PATH, nothing, {
    query: { sandbox_id: sandboxId },
    headers: { "Idempotency-Key": key },
  });
}

/** Returns the fields of a body that hold input. */
export function inputOf(stdin: string | Uint8Array | undefined): {
  stdin?: string;
  stdin_base64?: string;
} {
  if (stdin === undefined) return {};
  return typeof stdin === "string" ? { stdin } : { stdin_base64: toBase64(stdin) };
}

/** Returns the text of a `stdout` or `stderr` event. */
export function outputOf(data: string): string {
  return Wire.parse<{ text: string }>(data).text("text");
}

/** Returns the result of a `display` event. */
export function resultOf(data: string): Result {
  return shown(Wire.parse(data));
}

/** Decodes an execution. */
export function executionOf(obj: Wire<Schemas["ExecuteResult"]>): Execution {
  const status = obj.required("status");
  const cut = obj.object("truncated");
  const error = obj.object("error");
  const results = obj.list("results").map(shown);
  return {
    status,
    ok: status === "ok",
    stdout: obj.text("stdout"),
    stderr: obj.text("stderr"),
    stdoutBytes: obj.bytes("stdout_base64") ?? encode(obj.text("stdout")),
    stderrBytes: obj.bytes("stderr_base64") ?? encode(obj.text("stderr")),
    exitCode: obj.integer("exit_code"),
    results,
    result: results.find((result) => result.isMainResult),
    error: error && {
      name: error.text("name"),
      message: error.text("message"),
      traceback: error.text("traceback"),
    },
    durationMs: obj.number("duration_ms") ?? 0,
    truncated: {
      stdoutBytesDropped: cut?.count("stdout_bytes_dropped") ?? 0,
      stderrBytesDropped: cut?.count("stderr_bytes_dropped") ?? 0,
      resultsDropped: cut?.count("results_dropped") ?? 0,
    },
    contextId: obj.maybe("context_id") || undefined,
    executionCount: obj.integer("execution_count"),
    contextRestarted: obj.flag("context_restarted"),
    contextEnded: obj.flag("context_ended"),
    processId: obj.maybe("process_id") || undefined,
    nextOffset: obj.integer("next_offset"),
  };
}

function shown(obj: Wire<Schemas["ExecuteValue"]>): Result {
  return new Result({
    isMainResult: obj.flag("is_main_result"),
    text: obj.maybe("text"),
    html: obj.maybe("html"),
    markdown: obj.maybe("markdown"),
    svg: obj.maybe("svg"),
    png: obj.bytes("png"),
    jpeg: obj.bytes("jpeg"),
    pdf: obj.bytes("pdf"),
    latex: obj.maybe("latex"),
    json: obj.raw("json"),
    javascript: obj.maybe("javascript"),
    data: obj.raw("data"),
    chart: obj.raw("chart"),
    extra: obj.texts("extra"),
  });
}
