// Sandboxes, code and saved states, against a real server.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { randomBytes, randomUUID } from "node:crypto";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import {
  AuthenticationError,
  Client,
  ConflictError,
  type CreateOptions,
  InvalidRequestError,
  NotFoundError,
  PermissionDeniedError,
  type Result,
  Sandbox,
} from "../../src/index.js";
import { DEV, eventually, named, newClient, newFolder, URL_OF_SERVER } from "./helpers.js";

const client = newClient();
let sandbox: Sandbox;
before(async () => {
  sandbox = await Sandbox.create({ client });
});
after(async () => {
  await sandbox.kill();
});

// Running.

test("languages", async () => {
  const programs = {
    python: "import sys; print('out'); print('err', file=sys.stderr)",
    javascript: "console.log('out'); console.error('err')",
    bash: "echo out; echo err >&2",
  };
  for (const [language, code] of Object.entries(programs)) {
    const execution = await sandbox.runCode(code, { language });
    assert.ok(execution.ok, language);
    assert.deepEqual(
      [execution.stdout, execution.stderr, execution.exitCode, execution.error],
      ["out\n", "err\n", 0, undefined],
      language,
    );
    assert.ok(execution.durationMs > 0 && execution.durationMs < 60_000);
  }
  await assert.rejects(sandbox.runCode("x", { language: "cobol" }), InvalidRequestError);
});

test("code that fails is a result", async () => {
  const execution = await sandbox.runCode("1/0");
  assert.deepEqual([execution.status, execution.ok, execution.exitCode], ["error", false, 1]);
  assert.match(execution.stderr, /ZeroDivisionError/);
  assert.equal(execution.error?.name, "ZeroDivisionError");
  assert.equal((await sandbox.runCommand("exit 7")).exitCode, 7);
  assert.equal((await sandbox.runCommand("kill -9 $$")).exitCode, 137);
});

test("code that runs too long", async () => {
  const code = "print('begun')\nwhile True: pass";
  const execution = await sandbox.runCode(code, { timeoutSeconds: 1 });
  assert.deepEqual([execution.status, execution.stdout], ["timeout", "begun\n"]);
  assert.ok((await sandbox.runCommand("true")).ok);
});

test("environment, folder, input and user", async () => {
  const execution = await sandbox.runCommand("echo $GREETING; pwd; cat", {
    env: { GREETING: "grüß dich" },
    cwd: "/tmp",
    stdin: "in\nput",
  });
  assert.equal(execution.stdout, "grüß dich\n/tmp\nin\nput");
  assert.equal((await sandbox.runCommand("pwd; id -un")).stdout, "/workspace\nuser\n");
  assert.equal((await sandbox.runCommand("id -un", { user: "root" })).stdout, "root\n");
  const bytes = await sandbox.runCommand("cat", { stdin: new Uint8Array([0xff, 0x61]) });
  assert.deepEqual([...bytes.stdoutBytes], [0xff, 0x61]);
});

test("a program and its arguments", async () => {
  const { stdout } = await sandbox.runCommand(["echo", "a  b", "$HOME", "'"]);
  assert.equal(stdout, "a  b $HOME '\n");
});

test("much output says where it is cut", async () => {
  const execution = await sandbox.runCode("print('x' * 3_000_000)", { maxOutputBytes: 1000 });
  assert.equal(execution.stdout, "x".repeat(1000));
  assert.equal(execution.truncated.stdoutBytesDropped, 3_000_001 - 1000);
});

test("output comes while code runs", async () => {
  const folder = await newFolder(sandbox);
  const pieces: [string, string][] = [];
  const execution = await sandbox.runCode(
    `import os, sys, time\nprint('one')\n` +
      `while not os.path.exists('${folder}/go'): time.sleep(0.02)\n` +
      "print('two')\nprint('e', file=sys.stderr)",
    {
      onStdout: async (text) => {
        if (pieces.length === 0) await sandbox.writeFile(`${folder}/go`, "on");
        pieces.push(["stdout", text]);
      },
      onStderr: (text) => pieces.push(["stderr", text]),
    },
  );
  assert.ok(execution.ok, "what it printed did not come while it ran");
  const shown = (stream: string) =>
    pieces.flatMap(([from, text]) => (from === stream ? [text] : [])).join("");
  assert.deepEqual([shown("stdout"), shown("stderr")], ["one\ntwo\n", "e\n"]);
  assert.equal(execution.stdout, "one\ntwo\n");
});

async function stops(folder: string): Promise<void> {
  let last: string | undefined;
  await eventually(async () => {
    const now = (await sandbox.runCommand(`sleep 0.5; cat ${folder}/tick`)).stdout;
    const same = now === last;
    last = now;
    return same;
  }, "it stops");
}

test("what a handler throws ends the code", async () => {
  const folder = await newFolder(sandbox);
  const err = new Error("mine");
  const run = sandbox.runCommand(`while :; do echo; date +%s%N > ${folder}/tick; sleep 0.1; done`, {
    onStdout: () => {
      throw err;
    },
  });
  await assert.rejects(run, err);
  await stops(folder);
});

test("an aborted signal ends the code", async () => {
  const folder = await newFolder(sandbox);
  const controller = new AbortController();
  const loop = `while :; do date +%s%N > ${folder}/tick; sleep 0.1; done`;
  const run = sandbox.runCommand(loop, { signal: controller.signal });
  await eventually(() => sandbox.files.exists(`${folder}/tick`), "it runs");
  const reason = new Error("enough");
  controller.abort(reason);
  await assert.rejects(run, reason);
  await stops(folder);
  const late = sandbox.runCode("1", { signal: AbortSignal.abort(reason) });
  await assert.rejects(late, reason);
});

test("state, results and contexts", async () => {
  await sandbox.runCode("x = 40");
  assert.equal(String((await sandbox.runCode("x + 2")).result), "42");
  const shown: Result[] = [];
  const html = "from IPython.display import HTML, display\ndisplay(HTML('<b>b</b>'))";
  const execution = await sandbox.runCode(html, { onResult: (result) => shown.push(result) });
  assert.ok(execution.ok, execution.stderr);
  assert.deepEqual(
    shown.map((result) => result.html),
    ["<b>b</b>"],
  );
  const other = await sandbox.contexts.create("python", { cwd: "/tmp" });
  assert.ok(!(await sandbox.runCode("x", { context: other })).ok);
  const listed = await sandbox.contexts.list();
  assert.ok(listed.some((context) => context.contextId === other.contextId));
  assert.equal((await sandbox.contexts.restart(other)).state, "stopped");
  assert.equal(await sandbox.contexts.interrupt(other), false);
  await sandbox.contexts.delete(other);
  await assert.rejects(sandbox.runCode("1", { context: other }), NotFoundError);
});

test("many at the same time", async () => {
  const runs = Array.from({ length: 8 }, (_, n) => sandbox.runCode(`print(${n})`));
  const outputs = (await Promise.all(runs)).map((execution) => execution.stdout);
  assert.deepEqual(
    outputs,
    Array.from({ length: 8 }, (_, n) => `${n}\n`),
  );
});

// A life.

test("what a Sandbox is made with", async () => {
  const name = named();
  await using made = await Sandbox.create({
    client,
    name,
    timeoutSeconds: 120,
    network: "none",
    env: { GREETING: "hello" },
    metadata: { suite: name },
    resources: { memoryMb: 256, pids: 128 },
    cwd: "/tmp",
  });
  const info = await made.info();
  assert.deepEqual(
    [info.sandboxId, info.state, info.name, info.template, info.network, info.timeoutSeconds],
    [made.sandboxId, "running", name, "base", "none", 120],
  );
  assert.deepEqual([info.shape.memoryMb, info.shape.pids], [256, 128]);
  assert.deepEqual(info.metadata, { suite: name });
  assert.ok(info.createdAt && info.deadline && info.deadline > info.createdAt);
  assert.equal((await made.runCommand("echo $GREETING; pwd")).stdout, "hello\n/tmp\n");
  await assert.rejects(Sandbox.create({ client, name }), ConflictError);
  const found = await Sandbox.list({ client, metadata: { suite: name } });
  assert.deepEqual(
    found.map((one) => one.sandboxId),
    [made.sandboxId],
  );
  const same = await Sandbox.connect(name, { client });
  assert.equal(same.sandboxId, made.sandboxId);
});

test("changes while it runs", async () => {
  await using made = await Sandbox.create({ client, metadata: { a: "1", b: "2" } });
  const name = named();
  let info = await made.update({
    name,
    metadata: { a: null, c: "3" },
    env: { GREETING: "hello" },
    resources: { memoryMb: 256 },
    idleTimeoutSeconds: 600,
    checkpointEverySeconds: 3600,
    network: { mode: "none", allow: ["example.com"] },
    ports: { private: true },
  });
  assert.deepEqual([info.name, info.metadata], [name, { b: "2", c: "3" }]);
  assert.deepEqual(
    [info.resources.memoryMb, info.idleTimeoutSeconds, info.checkpointEverySeconds],
    [256, 600, 3600],
  );
  assert.deepEqual(info.network, { mode: "none", allow: ["example.com"] });
  assert.equal(info.ports.private, true);
  assert.equal((await made.runCommand("echo $GREETING")).stdout, "hello\n");
  const same = await Sandbox.create({ client, name, ifExists: "return" });
  assert.equal(same.sandboxId, made.sandboxId);
  info = await made.update({ name: "", idleTimeoutSeconds: 0, checkpointEverySeconds: 0 });
  assert.deepEqual(
    [info.name, info.idleTimeoutSeconds, info.checkpointEverySeconds],
    ["", undefined, undefined],
  );
  const much = made.update({ resources: { memoryMb: 100_000 } });
  await assert.rejects(much, ConflictError);
  assert.equal((await made.setTimeout(60)).timeoutSeconds, 60);
  assert.ok((await made.touch()).deadline);
});

test("ports", async () => {
  const server = await sandbox.processes.start("python3 -m http.server 8123");
  assert.ok((await server.waitForPort(8123)).met);
  const [open] = await sandbox.openPorts();
  assert.deepEqual([open?.port, open?.agent], [8123, false]);
  assert.equal((await sandbox.port(8123)).private, false);
  assert.equal((await sandbox.setPort(8123, { private: true })).private, true);
  const link = await sandbox.portLink(8123, { expiresInSeconds: 60 });
  assert.ok(link.token && link.expiresAt && link.expiresAt > new Date());
  await server.kill();
});

test("the end of a life", async () => {
  const made = await Sandbox.create({ client });
  const listed = async () => (await Sandbox.list({ client })).map((info) => info.sandboxId);
  assert.ok((await listed()).includes(made.sandboxId));
  assert.equal(await made.kill(), true);
  assert.equal(await made.kill(), false);
  assert.ok(!(await listed()).includes(made.sandboxId));
  assert.equal((await made.info()).ended?.cause, "released");
  await assert.rejects(made.runCommand("true"), ConflictError);
  await assert.rejects(Sandbox.connect(made.sandboxId, { client }), NotFoundError);
});

test("await using ends it, also after an error", async () => {
  const thrown = new Error("in the block");
  let inside: Sandbox | undefined;
  const block = async () => {
    await using made = await Sandbox.create({ client });
    inside = made;
    throw thrown;
  };
  await assert.rejects(block(), thrown);
  assert.equal((await inside?.info())?.state, "ended");
});

test("a program that dies leaves nothing when its Sandbox was to end", async () => {
  const program = fileURLToPath(new URL("./dies.ts", import.meta.url));
  const owner = named();
  const child = spawn(process.execPath, ["--import", "tsx", program, DEV ? owner : ""], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const [data] = (await new Promise<[Buffer]>((resolve) => {
    child.stdout.once("data", (piece) => resolve([piece]));
  })) as [Buffer];
  child.kill("SIGKILL");
  const its = new Client(DEV ? { userId: owner } : {});
  const sandboxId = data.toString().trim();
  await eventually(async () => {
    const found = await Sandbox.list({ client: its, states: ["ended"] });
    return found.some((info) => info.sandboxId === sandboxId && info.ended?.cause === "deadline");
  }, "it ends");
});

test("options that break a rule", async () => {
  const wrong: CreateOptions[] = [
    { name: "No Such Name" },
    { timeoutSeconds: -1 },
    { network: "everything" as "public" },
    { env: { "1A": "x" } },
    { resources: { memoryMb: 1 } },
    { resources: { gpus: 1 } as object },
    { template: "no/such/template" },
  ];
  for (const options of wrong) {
    const made = Sandbox.create({ ...options, client });
    await assert.rejects(made, InvalidRequestError, JSON.stringify(options));
  }
  const unknown = Sandbox.create({ client, template: "no-such-template" });
  await assert.rejects(unknown, NotFoundError);
});

test("created once for a key", async () => {
  const idempotencyKey = randomUUID();
  await using one = await Sandbox.create({ client, idempotencyKey });
  const other = await Sandbox.create({ client, idempotencyKey });
  assert.equal(one.sandboxId, other.sandboxId);
  const different = Sandbox.create({ client, idempotencyKey, timeoutSeconds: 5 });
  await assert.rejects(different, ConflictError);
});

// Saving, copying, going back.

test("a Sandbox that pauses", async () => {
  await using made = await Sandbox.create({ client, onTimeout: "end" });
  await made.runCode("x = 42");
  const paused = await made.pause();
  assert.deepEqual([paused.state, paused.onTimeout, paused.autoResume], ["paused", "end", true]);
  assert.ok(paused.snapshotId);
  assert.equal((await made.update({ autoResume: false })).state, "paused");
  await assert.rejects(made.runCode("x"), ConflictError);
  assert.equal((await made.resume()).state, "running");
  assert.equal(String((await made.runCode("x + 1")).result), "43");
  await made.writeFile("/workspace/kept", "yes");
  assert.equal((await made.pause({ memory: false })).state, "paused");
  await made.resume();
  assert.equal(await made.readFile("/workspace/kept"), "yes");
  assert.ok(!(await made.runCode("x")).ok);
});

test("Snapshots", async () => {
  await using made = await Sandbox.create({ client });
  await made.runCode("x = 'before'");
  const before = await made.snapshot("before");
  assert.deepEqual([before.name, before.kept, before.memory], ["before", true, true]);
  await assert.rejects(made.snapshot("before"), ConflictError);
  await made.runCode("x = 'after'");
  assert.equal((await made.rollback(before)).timeline, 2);
  assert.equal(String((await made.runCode("x")).result), "'before'");
  const current = (await made.history()).filter((one) => one.current);
  assert.deepEqual(
    current.map((one) => one.snapshotId),
    [before.snapshotId],
  );
  await assert.rejects(made.rollback("never"), NotFoundError);
  {
    await using other = await Sandbox.create({ client, snapshot: before });
    assert.equal(String((await other.runCode("x")).result), "'before'");
  }
  const [listed] = await client.snapshots.list({ sandboxId: made.sandboxId, limit: 1 });
  assert.equal(listed?.sandboxId, made.sandboxId);
  const file = await (await client.snapshots.export(before)).bytes();
  const imported = await client.snapshots.import(new Blob([file as Uint8Array<ArrayBuffer>]), {
    name: "imported",
  });
  assert.equal(imported.name, "imported");
  await client.snapshots.delete(imported);
  await made.kill();
  await client.snapshots.delete(before);
  await assert.rejects(client.snapshots.get(before), NotFoundError);
});

test("forks", async () => {
  await using made = await Sandbox.create({ client, metadata: { a: "1" } });
  await made.runCode("import random; x = 42; random.random()");
  const forks = await made.fork(2, { name: named("fork"), metadata: { b: "2" } });
  const drawn = new Set<string>();
  for (const one of [made, ...forks]) {
    drawn.add(String((await one.runCode("(x, random.random())")).result));
  }
  assert.equal(drawn.size, 3);
  assert.ok([...drawn].every((result) => result.startsWith("(42, ")));
  const info = await forks[1]?.info();
  assert.ok(info?.name.endsWith("-2"));
  assert.deepEqual(info?.metadata, { a: "1", b: "2" });
  for (const fork of forks) assert.ok(await fork.kill());
  await assert.rejects(made.fork(0), InvalidRequestError);
});

test("volumes", async () => {
  const volume = await client.volumes.create(named("vol"), { sizeMb: 64 });
  try {
    {
      await using made = await Sandbox.create({ client, volumes: { "/data": volume } });
      await made.writeFile("/data/words", "pause resume fork");
      assert.equal((await made.info()).volumes[0]?.volume, volume.name);
    }
    await using later = await Sandbox.create({ client, volumes: { "/data": volume.name } });
    assert.equal(await later.readFile("/data/words"), "pause resume fork");
    await assert.rejects(client.volumes.delete(volume), ConflictError);
    assert.equal((await client.volumes.get(volume)).sizeMb, 64);
    assert.deepEqual(
      (await client.volumes.list()).map((one) => one.volumeId),
      [volume.volumeId],
    );
  } finally {
    await eventually(async () => {
      try {
        await client.volumes.delete(volume);
        return true;
      } catch (err) {
        if (err instanceof ConflictError) return false;
        throw err;
      }
    }, "the volume is free");
  }
});

// The server and its users.

test("numbers of the server", async () => {
  const stats = await client.stats();
  assert.ok((stats.sandboxes.running ?? 0) >= 1);
  assert.equal(stats.nodes[0]?.ready, true);
  assert.ok((stats.depths?.active ?? 0) >= 1);
  await eventually(async () => (await client.usage()).length <= 1, "usage");
  const days = await client.usage({ groupBy: ["day", "sandbox"] });
  assert.ok(days.every((row) => row.day !== undefined && row.sandboxId !== undefined));
});

test("templates", async () => {
  const listed = await client.templates.list();
  assert.ok(listed.some((template) => template.name === "base" && template.shared));
  const base = await client.templates.get("base");
  assert.ok(base.versions.length >= 1 && base.sizeBytes > 0);
  await assert.rejects(client.templates.delete("base"), PermissionDeniedError);
  await assert.rejects(client.templates.getBuild("t0123456789abcdefghij"), NotFoundError);
});

test("a template of an archive and large files", async () => {
  const name = named("small");
  const content = randomBytes(2 << 20); // more than JSON may hold
  const copies =
    "mkdir -p rootfs/bin && cp /bin/sh /bin/cat /bin/stat rootfs/bin; " +
    "for f in $(ldd /bin/sh /bin/cat /bin/stat | grep -o '/[^ :]*' | sort -u); " +
    "do mkdir -p rootfs$(dirname $f); cp -L $f rootfs$f; done";
  await using maker = await Sandbox.create({ client });
  assert.ok((await maker.runCommand(copies)).ok);
  const lines: string[] = [];
  const build = await client.templates.build(name, {
    source: "tar:",
    archive: await maker.files.readArchive("rootfs"),
    files: [
      { path: "/srv/large", content, mode: 0o640, owner: "user" },
      { path: "/srv/text", content: "grüß dich", mode: "755" },
    ],
    env: { GREETING: "hello" },
    onLog: (line) => lines.push(line),
  });
  assert.deepEqual([build.state, build.ended, build.error], ["ready", true, undefined]);
  assert.ok(lines.length > 0 && build.sizeBytes > 0);
  const builds = await client.templates.builds();
  assert.ok(builds.some(({ buildId }) => buildId === build.buildId));
  {
    await using made = await Sandbox.create({ client, template: name });
    assert.ok(content.equals(await made.readFile("/srv/large", { format: "bytes" })));
    assert.equal(await made.readFile("/srv/text"), "grüß dich");
    const modes = await made.processes.run([
      "/bin/sh",
      "-c",
      "stat -c '%a %u' /srv/*; echo $GREETING",
    ]);
    assert.equal(modes.stdout, "640 1000\n755 0\nhello\n");
  }
  const removed = await client.templates.delete(name);
  assert.deepEqual(removed.removed, [name, `${name}@${build.version}`]);
  assert.ok(removed.freedBytes > 0);
  const failing = client.templates.build(name, { source: "tar:", archive: "no archive" });
  await assert.rejects(failing, InvalidRequestError);
});

test("secrets", async () => {
  const name = named("SECRET");
  const made = await client.secrets.create(name, "value-1", {
    description: "a test",
    hosts: ["api.example.com"],
  });
  assert.deepEqual([made.name, made.hosts], [name, ["api.example.com"]]);
  await assert.rejects(client.secrets.create(name, "value-2"), ConflictError);
  const replaced = await client.secrets.replace(name, "value-2", { hosts: [] });
  assert.deepEqual([replaced.description, replaced.hosts], ["a test", []]);
  const uses = [
    { name, host: "api.example.com", header: "Authorization", format: "Bearer {value}" },
  ];
  await using user = await Sandbox.create({ client, secrets: uses });
  assert.deepEqual((await user.info()).secrets, uses);
  assert.deepEqual((await user.update({ secrets: [] })).secrets, []);
  await client.secrets.delete(made);
  await assert.rejects(client.secrets.delete(name), NotFoundError);
});

test("keys", async () => {
  const made = await client.keys.create("reads", { scopes: ["read"], expiresInSeconds: 600 });
  assert.ok(made.key?.endsWith(made.hint));
  const listed = (await client.keys.list()).find((key) => key.keyId === made.keyId);
  assert.deepEqual([listed?.name, listed?.key], ["reads", undefined]);
  const reader = new Client({ apiKey: made.key ?? "" });
  await Sandbox.list({ client: reader });
  await assert.rejects(Sandbox.create({ client: reader }), PermissionDeniedError);
  const rotated = await client.keys.rotate(made, { overlapSeconds: 60 });
  assert.equal(rotated.previous?.hint, made.hint);
  await Sandbox.list({ client: reader });
  assert.equal((await client.keys.rotate(made, { overlapSeconds: 0 })).previous, undefined);
  await assert.rejects(Sandbox.list({ client: reader }), AuthenticationError);
  await client.keys.delete(made);
  await assert.rejects(client.keys.delete(made.keyId), NotFoundError);
  await assert.rejects(client.keys.create(""), InvalidRequestError);
});

test("users and the audit log", {
  skip: !DEV && "needs dev mode for tokens of roles",
}, async () => {
  const me = named();
  const token = async (role: string) => {
    const answer = await fetch(`${URL_OF_SERVER}/api/v1/auth/token`, {
      method: "POST",
      body: JSON.stringify({ user_id: me, role }),
    });
    return ((await answer.json()) as { access_token: string }).access_token;
  };
  const viewer = new Client({ token: await token("viewer") });
  await assert.rejects(viewer.users.list(), PermissionDeniedError);
  const owner = new Client({ token: await token("owner") });
  const mine = await owner.users.get(me);
  assert.deepEqual([mine.role, mine.roleGiven, mine.source], ["owner", false, "token"]);
  const added = await owner.users.add("corp:a/b é", { role: "viewer", name: "Ann" });
  assert.deepEqual([added.userId, added.role, added.name], ["corp:a/b é", "viewer", "Ann"]);
  const changed = await owner.users.update(added, { state: "suspended", name: "" });
  assert.deepEqual([changed.state, changed.name], ["suspended", undefined]);
  assert.deepEqual(await owner.users.list({ state: "suspended" }), [changed]);
  await assert.rejects(owner.users.remove(me), ConflictError);
  await owner.users.remove(added);
  await assert.rejects(owner.users.get(added), NotFoundError);
  const entries = await owner.audit.list({ operation: "deleteUser", limit: 5 });
  assert.deepEqual(
    entries.map(({ target, outcome }) => [target, outcome]),
    [
      ["corp:a/b é", "ok"],
      [me, "failed"],
    ],
  );
});

test("a bad token", async () => {
  await assert.rejects(Sandbox.list({ token: "not.a.token" }), AuthenticationError);
});

test("others see nothing", { skip: !DEV && "needs dev mode for a second user" }, async () => {
  const other = new Client({ userId: named() });
  assert.deepEqual(await Sandbox.list({ client: other }), []);
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, { client: other }), NotFoundError);
});
