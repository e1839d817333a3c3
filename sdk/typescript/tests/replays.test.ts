// The replays that every SDK has to pass: see tests/sdk/README.md.

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { Client, CloudSandboxError, Sandbox } from "../src/index.js";
import { VERSION } from "../src/version.js";
import { type Received, type Reply, Server } from "./server.js";

const FOLDER = new URL("../../../tests/sdk/", import.meta.url);
const SANDBOX_ID = "i0123456789abcdefghij";

type JSONObject = Record<string, unknown>;

interface Case {
  name: string;
  call: { method: string; args: JSONObject; stream?: boolean };
  exchanges: { request: JSONObject; response: JSONObject }[];
  expect: { result?: unknown; output?: unknown; error?: JSONObject };
}

const files = readdirSync(FOLDER).filter((name) => name.endsWith(".json"));
let cases = 0;
for (const file of files.sort()) {
  const found = JSON.parse(readFileSync(new URL(file, FOLDER), "utf8")) as Case[];
  for (const one of found) {
    cases++;
    test(`${file}: ${one.name}`, () => replay(one));
  }
}
test("there are replays", () => assert.ok(cases > 100));

async function replay({ call, exchanges, expect }: Case): Promise<void> {
  const left = [...exchanges];
  await using server = await Server.start((received) => {
    const exchange = left.shift();
    assert.ok(exchange, `one request too many: ${received.method} ${received.path}`);
    checkRequest(received, exchange.request);
    return replyOf(exchange.response);
  });
  const output: [string, string][] = [];
  let result: unknown;
  let error: unknown;
  try {
    result = await perform(call, server.url, output);
  } catch (err) {
    error = err;
  }
  // An assertion that failed in the server explains more than its 500.
  if (server.problems.length > 0) throw server.problems[0];
  if (expect.error) {
    assert.ok(error instanceof CloudSandboxError, `no error of ours: ${error ?? result}`);
    check(error, expect.error, "error");
  } else {
    if (error) throw error;
    check(result, expect.result, "result");
  }
  assert.equal(left.length, 0, "one request too few");
  assert.deepEqual(output, expect.output ?? []);
}

// The positional arguments of each method, by their names on the wire.
const POSITIONAL: Record<string, string[]> = {
  connect: ["sandbox_id"],
  set_timeout: ["timeout_seconds"],
  run_code: ["code"],
  run_command: ["command"],
  write_file: ["path", "data"],
  read_file: ["path"],
  list_files: ["path"],
  delete_file: ["path"],
  "contexts.create": ["language"],
  "contexts.restart": ["context"],
  "contexts.interrupt": ["context"],
  "contexts.delete": ["context"],
  "files.read": ["path"],
  "files.stat": ["path"],
  "files.make_dir": ["path"],
  "files.move": ["source", "destination"],
  "files.copy": ["source", "destination"],
  "files.chmod": ["path", "mode"],
  "files.search": ["pattern"],
  "files.replace": ["path", "pattern", "replacement"],
  "files.changes": ["path"],
  "files.sign": ["path", "method"],
  "files.remove": ["path"],
  "files.write_archive": ["path", "data"],
  "git.clone": ["url"],
  "git.checkout": ["ref"],
  "git.add": ["files"],
  "git.commit": ["message"],
  "keys.create": ["name"],
  "keys.rotate": ["key"],
  "keys.delete": ["key"],
  "processes.start": ["command"],
  "processes.run": ["command"],
  "processes.get": ["process_id"],
  "secrets.create": ["name", "value"],
  "secrets.replace": ["name", "value"],
  "secrets.delete": ["secret"],
  "templates.build": ["template"],
  "templates.start_build": ["template"],
  "templates.get": ["template"],
  "templates.delete": ["template"],
  "templates.get_build": ["build_id"],
  "templates.cancel": ["build_id"],
  "users.get": ["user"],
  "users.add": ["user"],
  "users.update": ["user"],
  "users.remove": ["user"],
  "volumes.create": ["name"],
  "volumes.get": ["volume"],
  "volumes.delete": ["volume"],
};
const OF_CLIENT = /^(audit|keys|secrets|templates|users|volumes)\./;

async function perform(
  { method, args, stream }: Case["call"],
  url: string,
  output: [string, string][],
): Promise<unknown> {
  const options: JSONObject = {};
  for (const [name, value] of Object.entries(args)) options[camel(name)] = deep(name, value);
  if (method === "git.commit" && Array.isArray(args.author)) {
    options.author = { name: args.author[0], email: args.author[1] };
  }
  const positional = (POSITIONAL[method] ?? []).map((name) => {
    const value = options[camel(name)];
    delete options[camel(name)];
    return value;
  });
  if (stream) {
    options.onStdout = (text: string) => output.push(["stdout", text]);
    options.onStderr = (text: string) => output.push(["stderr", text]);
  }
  const connection = options.userId === undefined ? { token: "test-token" } : {};
  let target: unknown;
  if (method === "create" || method === "connect" || method === "list") {
    Object.assign(options, connection, { baseUrl: url });
    target = Sandbox;
  } else {
    const client = new Client({ baseUrl: url, ...connection });
    target = OF_CLIENT.test(method) ? client : new Sandbox(client, SANDBOX_ID);
  }
  const [first = "", second] = method.split(".");
  if (second !== undefined) target = (target as JSONObject)[first];
  const name = camel(second ?? first);
  const called = (target as Record<string, (...args: unknown[]) => Promise<unknown>>)[name];
  assert.ok(called, `there is no ${method}`);
  return called.call(target, ...positional, options);
}

function checkRequest(received: Received, want: JSONObject): void {
  assert.equal(received.method, want.method);
  assert.equal(received.path, want.path);
  assert.deepEqual(received.query, want.query ?? {});
  assert.equal(received.headers["user-agent"], `cloud-sandbox-typescript/${VERSION}`);
  for (const [name, value] of Object.entries((want.headers ?? {}) as JSONObject)) {
    assert.equal(received.headers[name.toLowerCase()] ?? null, value, name);
  }
  if ("json" in want) {
    assert.equal(received.headers["content-type"], "application/json");
    assert.deepEqual(JSON.parse(received.body), want.json);
  } else {
    assert.equal(received.body, want.text ?? "");
  }
}

function replyOf(spec: JSONObject): Reply {
  const status = spec.status as number;
  const headers = { ...(spec.headers as Record<string, string>) };
  if ("pieces" in spec) return { status, body: spec.pieces as string[], headers };
  if ("text" in spec) return { status, body: spec.text as string, headers };
  headers["Content-Type"] = "application/json";
  return { status, body: JSON.stringify(spec.json ?? {}), headers };
}

/** Compares the fields that want names. */
function check(got: unknown, want: unknown, at: string): void {
  if (want === null) {
    assert.equal(got ?? null, null, at);
  } else if (got instanceof Date) {
    // A Date holds milliseconds only.
    assert.equal(got.getTime(), new Date(want as string).getTime(), at);
  } else if (Array.isArray(want)) {
    assert.ok(Array.isArray(got), at);
    assert.equal(got.length, want.length, at);
    want.forEach((item, index) => {
      check(got[index], item, `${at}[${index}]`);
    });
  } else if (typeof want === "object") {
    assert.ok(typeof got === "object" && got !== null, at);
    for (const [name, value] of Object.entries(want)) {
      const key = name in got ? name : camel(name);
      check((got as JSONObject)[key], value, `${at}.${name}`);
    }
  } else {
    assert.equal(got, want, at);
  }
}

// The content of these belongs to the caller and stays as it is.
const OWN = new Set(["env", "metadata", "volumes", "buildArgs", "network", "ports", "secrets"]);

function deep(name: string, value: unknown): unknown {
  if (OWN.has(camel(name)) || typeof value !== "object" || value === null) return value;
  if (Array.isArray(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [camel(key), item]));
}

function camel(name: string): string {
  return name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
}
