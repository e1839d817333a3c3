// Processes and terminals, against a real server.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import {
  ConflictError,
  InvalidRequestError,
  NotFoundError,
  Sandbox,
  SandboxTimeoutError,
  type Terminal,
} from "../../src/index.js";
import { eventually, named, newClient } from "./helpers.js";

const client = newClient();
let sandbox: Sandbox;
before(async () => {
  sandbox = await Sandbox.create({ client });
});
after(async () => {
  await sandbox.kill();
});

const text = (data: Uint8Array) => new TextDecoder().decode(data);

/** Reads until a text was shown. */
async function until(terminal: Terminal, shown: string): Promise<string> {
  let all = "";
  for await (const data of terminal) {
    all += text(data);
    if (all.includes(shown)) return all;
  }
  assert.fail(`${JSON.stringify(shown)} was not shown, but ${JSON.stringify(all)}`);
}

/** Reads to the end. */
async function rest(terminal: Terminal): Promise<string> {
  let all = "";
  for await (const data of terminal) all += text(data);
  return all;
}

test("running to the end", async () => {
  const pieces: [string, string][] = [];
  const execution = await sandbox.processes.run("echo out; echo err >&2; exit 3", {
    onStdout: (piece) => pieces.push(["stdout", piece]),
    onStderr: (piece) => pieces.push(["stderr", piece]),
  });
  assert.deepEqual(
    [execution.status, execution.exitCode, execution.stdout, execution.stderr],
    ["error", 3, "out\n", "err\n"],
  );
  assert.deepEqual(pieces.sort(), [
    ["stderr", "err\n"],
    ["stdout", "out\n"],
  ]);
  const quiet = await sandbox.processes.run(["printf", "%s", "a  b"]);
  assert.deepEqual([quiet.ok, quiet.stdout], [true, "a  b"]);
  const much = await sandbox.processes.run("head -c 3000000 /dev/zero", { maxOutputBytes: 1000 });
  assert.equal(much.stdoutBytes.length, 1000);
  assert.equal(much.truncated.stdoutBytesDropped, 3_000_000 - 1000);
  const long = await sandbox.processes.run("for n in 1 2 3; do echo $n; sleep 0.1; done");
  assert.equal(long.stdout, "1\n2\n3\n");
  await assert.rejects(sandbox.processes.run(["no-such-program"]), InvalidRequestError);
});

test("an aborted run ends the process", async () => {
  const controller = new AbortController();
  const name = named("loop");
  const reason = new Error("enough");
  const run = sandbox.processes.run("echo begun; exec -a looper sleep 600", {
    signal: controller.signal,
    onStdout: () => controller.abort(reason),
  });
  await assert.rejects(run, reason);
  await eventually(async () => {
    const running = await sandbox.processes.list({ state: "running" });
    return !running.some(({ command }) => command.includes("looper"));
  }, `${name} ends`);
});

test("input, output and signals", async () => {
  const process = await sandbox.processes.start(["cat"], { name: named("cat"), keepStdin: true });
  await process.write("one\n");
  assert.equal((await process.waitForLog("^one$")).line, "one");
  const writer = process.stdin.getWriter();
  await writer.write("two\n");
  await writer.close();
  const ended = await process.wait({ timeoutSeconds: 60 });
  assert.deepEqual([ended.ended, ended.ok, ended.exitCode], [true, true, 0]);
  const output = await process.output();
  assert.deepEqual([output.text, output.nextOffset, output.ended], ["one\ntwo\n", 8, true]);
  assert.equal((await process.output({ start: -4 })).text, "two\n");
  await assert.rejects(process.write("late"), ConflictError);
  const sleeper = await sandbox.processes.start("sleep 600");
  await assert.rejects(sleeper.wait({ timeoutSeconds: 0.2 }), SandboxTimeoutError);
  await sleeper.signal("TERM");
  assert.equal((await sleeper.wait()).exitCode, 143);
  assert.equal((await sleeper.kill()).exitCode, 143);
  await assert.rejects(sleeper.signal("NONE"), InvalidRequestError);
});

test("input of any size", async () => {
  const process = await sandbox.processes.start("wc -c", { keepStdin: true });
  const writer = process.stdin.getWriter();
  await writer.write(new Uint8Array(2_500_000));
  await writer.write("é".repeat(1_000_000));
  await writer.close();
  await process.wait({ timeoutSeconds: 30 });
  assert.equal((await process.output()).text, "4500000\n");
});

test("following", async () => {
  const process = await sandbox.processes.start("for n in 1 2 3; do echo $n; sleep 0.1; done");
  let all = "";
  for await (const piece of process.follow()) all += piece.text;
  assert.equal(all, "1\n2\n3\n");
  assert.equal(process.info.exitCode, 0);
  const bytes = await new Response(process.follow({ start: 2 }).readable).text();
  assert.equal(bytes, "2\n3\n");
  const looping = await sandbox.processes.start("while :; do echo tick; sleep 0.05; done");
  for await (const piece of looping.follow()) {
    assert.match(piece.text, /tick/);
    break;
  }
  assert.equal((await looping.refresh()).ended, false);
  await looping.kill();
});

test("waiting for a server", async () => {
  const process = await sandbox.processes.start("python3 -m http.server 8765", { name: named() });
  assert.ok((await process.waitForPort(8765)).met);
  const answer = await process.waitForHttp(8765, "/");
  assert.deepEqual([answer.met, answer.httpStatus], [true, 200]);
  assert.equal((await process.waitForPort(9, { timeoutSeconds: 0.2 })).met, false);
  await process.kill();
  assert.equal((await process.waitForLog("never")).met, false);
});

test("shells, names and keys", async () => {
  const shell = named("sh");
  assert.ok((await sandbox.processes.run("cd /tmp; COLOUR=blue", { shell })).ok);
  const there = await sandbox.processes.run("echo $PWD $COLOUR", { shell });
  assert.equal(there.stdout, "/tmp blue\n");
  const idempotencyKey = randomUUID();
  const first = await sandbox.processes.start("sleep 1", { idempotencyKey });
  const again = await sandbox.processes.start("sleep 1", { idempotencyKey });
  assert.equal(first.processId, again.processId);
  await assert.rejects(sandbox.processes.start("sleep 2", { idempotencyKey }), ConflictError);
  await assert.rejects(sandbox.processes.start(""), InvalidRequestError);
  await assert.rejects(sandbox.processes.get("no-such-process"), NotFoundError);
  const listed = await sandbox.processes.list();
  assert.ok(listed.some((process) => process.processId === first.processId));
});

test("a terminal", async () => {
  await using terminal = await sandbox.processes.openTerminal("bash --norc", {
    cols: 100,
    rows: 30,
  });
  await terminal.write("stty size; echo $((6*7))$USER\n");
  const shown = await until(terminal, "42user");
  assert.match(shown, /30 100/);
  await terminal.resize(120, 40);
  await terminal.write(new TextEncoder().encode("stty size\n"));
  await until(terminal, "40 120");
  const process = await sandbox.processes.get(terminal.processId);
  assert.deepEqual(process.info.pty, { cols: 120, rows: 40 });
  await process.resize(80, 24);
  await using other = await process.attach({ start: 0 });
  await terminal.write("exit 3\n");
  assert.ok((await rest(other)).startsWith(shown));
  await rest(terminal);
  assert.deepEqual([terminal.info?.exitCode, other.info?.exitCode], [3, 3]);
  assert.equal(terminal.offset, other.offset);
});

test("a terminal as Web Streams", async () => {
  const terminal = await sandbox.processes.openTerminal(["cat"]);
  const input = new ReadableStream<string>({
    start(controller) {
      for (let n = 0; n < 200; n++) controller.enqueue(`line ${n}\n`);
      controller.close();
    },
  });
  const [shown] = await Promise.all([
    new Response(terminal.readable).text(),
    input.pipeTo(terminal.writable),
  ]);
  assert.match(shown, /line 199/);
  assert.equal(terminal.info?.ok, true);
});

test("an interrupt, and what changes nothing", async () => {
  await using terminal = await sandbox.processes.openTerminal("echo ready; sleep 600");
  await until(terminal, "ready");
  await terminal.signal("NONE");
  await assert.rejects(rest(terminal), InvalidRequestError);
  await terminal.signal("INT");
  await rest(terminal);
  assert.equal(terminal.info?.status, "killed");
});

test("attaching to what has ended, and to nothing", async () => {
  const process = await sandbox.processes.start("true");
  await process.wait({ timeoutSeconds: 60 });
  await using terminal = await process.attach();
  assert.equal(await rest(terminal), "");
  assert.equal(terminal.info?.ok, true);
  const gone = await Sandbox.create({ client });
  const its = await gone.processes.start("sleep 600");
  await gone.kill();
  await assert.rejects(its.attach(), ConflictError);
});

test("an aborted signal ends reading", async () => {
  const controller = new AbortController();
  const terminal = await sandbox.processes.openTerminal("sleep 600", {
    signal: controller.signal,
  });
  const reason = new Error("enough");
  setTimeout(() => controller.abort(reason), 50);
  await assert.rejects(rest(terminal), reason);
  await terminal.close();
});
