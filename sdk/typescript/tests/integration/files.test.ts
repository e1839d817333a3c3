// Files and repositories, against a real server.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { mkdtempSync, openAsBlob, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  ConflictError,
  type FileChange,
  InvalidRequestError,
  NotFoundError,
  Sandbox,
} from "../../src/index.js";
import { newClient, newFolder } from "./helpers.js";

const client = newClient();
let sandbox: Sandbox;
before(async () => {
  sandbox = await Sandbox.create({ client });
});
after(async () => {
  await sandbox.kill();
});

test("files come back as they were", async () => {
  const folder = await newFolder(sandbox);
  const binary = new Uint8Array(256 * 5000).map((_, at) => at % 256);
  for (const content of [new Uint8Array(), new TextEncoder().encode("x = 42"), binary]) {
    const path = `${folder}/new/ä b#c?d&e%41.bin`;
    const entry = await sandbox.writeFile(path, content);
    assert.deepEqual([entry.path, entry.type, entry.sizeBytes], [path, "file", content.length]);
    assert.deepEqual(await sandbox.readFile(path, { format: "bytes" }), content);
    const stream = await sandbox.readFile(path, { format: "stream" });
    assert.deepEqual(await stream.bytes(), content);
  }
});

test("text files", async () => {
  const folder = await newFolder(sandbox);
  await sandbox.writeFile(`${folder}/t`, "grüß dich\n");
  assert.equal(await sandbox.readFile(`${folder}/t`), "grüß dich\n");
  await sandbox.writeFile(`${folder}/t`, new Uint8Array([0xff]));
  await assert.rejects(sandbox.readFile(`${folder}/t`), TypeError);
  assert.equal((await sandbox.writeFile("rel.txt", "r")).path, "/workspace/rel.txt");
  await sandbox.deleteFile("rel.txt");
});

test("everything that can be written", async () => {
  const folder = await newFolder(sandbox);
  const local = mkdtempSync(join(tmpdir(), "sdk-"));
  try {
    const content = randomBytes(3_000_000);
    writeFileSync(join(local, "f"), content);
    const blob = await openAsBlob(join(local, "f"));
    await sandbox.writeFile(`${folder}/f`, blob);
    const read = await sandbox.readFile(`${folder}/f`, { format: "bytes" });
    assert.ok(content.equals(read));
    await sandbox.writeFile(`${folder}/s`, blob.stream() as ReadableStream<Uint8Array>);
    const stream = await sandbox.readFile(`${folder}/s`, { format: "stream" });
    await sandbox.writeFile(`${folder}/t`, stream);
    const { stdout } = await sandbox.runCommand(`cd ${folder}; cat f s t | wc -c`);
    assert.equal(stdout.trim(), "9000000");
    async function* lines() {
      for (let n = 0; n < 1000; n++) yield n % 2 ? `${n}\n` : new TextEncoder().encode(`${n}\n`);
    }
    await sandbox.writeFile(`${folder}/i`, lines());
    const count = await sandbox.runCommand(`wc -l < ${folder}/i`);
    assert.equal(count.stdout.trim(), "1000");
  } finally {
    rmSync(local, { recursive: true });
  }
});

test("what list and stat say", async () => {
  const folder = await newFolder(sandbox);
  await sandbox.writeFile(`${folder}/d/f`, "12345");
  await sandbox.runCommand(`ln -s d ${folder}/l; chmod 600 ${folder}/d/f`);
  const listed = await sandbox.listFiles(folder);
  assert.deepEqual(listed.map((entry) => entry.name).sort(), ["d", "l"]);
  assert.equal(listed.truncated, false);
  const link = listed.find((entry) => entry.name === "l");
  assert.deepEqual([link?.type, link?.symlinkTarget], ["symlink", `${folder}/d`]);
  const deep = await sandbox.listFiles(folder, { depth: 2 });
  assert.ok(deep.some((entry) => entry.path === `${folder}/d/f`));
  const entry = await sandbox.files.stat(`${folder}/d/f`);
  assert.deepEqual(
    [entry.sizeBytes, entry.mode, entry.owner, entry.isDir],
    [5, "0600", "user", false],
  );
  assert.ok(Math.abs((entry.modifiedAt?.getTime() ?? 0) - Date.now()) < 60_000);
});

test("making, moving and removing", async () => {
  const folder = await newFolder(sandbox);
  const { files } = sandbox;
  assert.ok((await files.makeDir(`${folder}/a/b`)).isDir);
  await assert.rejects(files.makeDir(`${folder}/a/b`), ConflictError);
  assert.ok((await files.makeDir(`${folder}/a/b`, { existOk: true })).isDir);
  await files.write(`${folder}/a/b/f`, "f");
  assert.equal((await files.move(`${folder}/a`, `${folder}/c`)).path, `${folder}/c`);
  assert.equal(await files.exists(`${folder}/c/b/f`), true);
  assert.equal(await files.exists(`${folder}/a`), false);
  await assert.rejects(files.remove(`${folder}/c`), ConflictError);
  await files.remove(`${folder}/c`, { recursive: true });
  assert.equal((await files.list(folder)).length, 0);
  for (const path of ["", "a\0b", `/${"a".repeat(5000)}`]) {
    await assert.rejects(files.read(path), InvalidRequestError, path.slice(0, 9));
  }
  const none = `${folder}/no`;
  await assert.rejects(files.read(none), NotFoundError);
  await assert.rejects(files.stat(none), NotFoundError);
  await assert.rejects(files.list(none), NotFoundError);
  await assert.rejects(files.remove(none), NotFoundError);
});

test("parts, copies and permissions", async () => {
  const folder = await newFolder(sandbox);
  const { files } = sandbox;
  await files.write(`${folder}/f`, "0123456789");
  assert.equal(await files.read(`${folder}/f`, { start: 2, length: 3 }), "234");
  assert.equal(await files.read(`${folder}/f`, { start: -2 }), "89");
  await assert.rejects(files.read(`${folder}/f`, { start: 10 }), InvalidRequestError);
  await files.write(`${folder}/d/run.sh`, "echo ran");
  const copied = await files.copy(`${folder}/d`, `${folder}/e`, { recursive: true });
  assert.deepEqual([copied.entry.path, copied.files, copied.bytes], [`${folder}/e`, 1, 8]);
  await assert.rejects(files.copy(`${folder}/f`, `${folder}/e/run.sh`), ConflictError);
  assert.equal(await files.chmod(`${folder}/e/run.sh`, 0o755), 1);
  assert.equal((await sandbox.runCommand(`${folder}/e/run.sh`)).stdout, "ran\n");
  assert.equal(await files.chmod(`${folder}/e`, "700", { recursive: true }), 2);
});

test("searching, replacing and batches", async () => {
  const folder = await newFolder(sandbox);
  const { files } = sandbox;
  await files.writeMany(
    { "a.py": "import os\n\ndef main():\n    pass\n", "b.txt": "def text" },
    folder,
  );
  const found = await files.search("def \\w+", { path: folder, globs: ["*.py"], contextLines: 1 });
  assert.deepEqual(
    found.matches.map(({ path, line, text, spans, after }) => [path, line, text, spans, after]),
    [[`${folder}/a.py`, 3, "def main():", [[0, 8]], ["    pass"]]],
  );
  const byName = await files.search(undefined, { path: folder, globs: ["*.txt"] });
  assert.deepEqual(
    byName.matches.map((match) => match.path),
    [`${folder}/b.txt`],
  );
  await assert.rejects(files.search("(", { path: folder }), InvalidRequestError);
  const done = await files.batch([
    { op: "write", path: `${folder}/c.py`, content: "x = 1\nx = 2\n", mode: 0o640 },
    { op: "write", path: `${folder}/b.bin`, content: new Uint8Array([0xff, 0]) },
    { op: "read", path: `${folder}/b.bin` },
    { op: "stat", path: `${folder}/no` },
  ]);
  assert.equal(done.failed, 1);
  assert.equal(done.results[0]?.entry?.mode, "0640");
  assert.deepEqual([...(done.results[2]?.content ?? [])], [0xff, 0]);
  assert.ok(done.results[3]?.error instanceof NotFoundError);
  const replaced = await files.replace(folder, "x = (\\d)", "y = $1", {
    regex: true,
    globs: ["*.py"],
    expectedCount: 2,
  });
  assert.deepEqual([replaced.count, replaced.files[0]?.lines], [2, [1, 2]]);
  assert.equal(await files.read(`${folder}/c.py`), "y = 1\ny = 2\n");
  const other = files.replace(`${folder}/c.py`, "y", "z", { expectedCount: 1 });
  await assert.rejects(other, ConflictError);
});

test("many files at once", async () => {
  const folder = await newFolder(sandbox);
  const names = ["plain", 'd/ä b"c"\\d%41.txt', "empty"] as const;
  const contents = { [names[0]]: "text", [names[1]]: ["pie", "ces"], [names[2]]: "" };
  const written = await sandbox.files.writeMany(contents, folder);
  assert.deepEqual(
    written.map((entry) => entry.path),
    names.map((name) => `${folder}/${name}`),
  );
  assert.equal(await sandbox.readFile(`${folder}/${names[1]}`), "pieces");
  const out = sandbox.files.writeMany({ "../out": "" }, folder);
  await assert.rejects(out, InvalidRequestError);
});

test("archives", async () => {
  const folder = await newFolder(sandbox);
  await sandbox.writeFile(`${folder}/d/sub/f`, "content");
  for (const format of ["tar", "tar.gz", "zip"] as const) {
    const archive = await sandbox.files.readArchive(`${folder}/d`, { format });
    const written = await sandbox.files.writeArchive(`${folder}/${format}`, archive);
    assert.deepEqual([written.path, written.files, written.bytes], [`${folder}/${format}`, 1, 7]);
    assert.equal(await sandbox.readFile(`${folder}/${format}/sub/f`), "content");
  }
  const bad = sandbox.files.writeArchive(`${folder}/bad`, "no archive");
  await assert.rejects(bad, InvalidRequestError);
});

test("changes and watching", async () => {
  const folder = await newFolder(sandbox);
  const start = await sandbox.files.changes(folder, { recursive: true });
  assert.deepEqual([start.changes, start.reset], [[], false]);
  const seen: FileChange[] = [];
  const watch = await sandbox.files.watch(folder, { recursive: true });
  await sandbox.writeFile(`${folder}/d/f`, "1");
  for await (const change of watch) {
    seen.push(change);
    if (change.path === `${folder}/d/f`) break;
  }
  assert.ok(watch.cursor);
  assert.ok(seen.some(({ type, path }) => type === "created" && path === `${folder}/d`));
  const since = await sandbox.files.changes(folder, { since: start.cursor, recursive: true });
  assert.ok(since.changes.some(({ path }) => path === `${folder}/d`));
  const forgotten = await sandbox.files.changes(folder, { since: "forgotten-1" });
  assert.equal(forgotten.reset, true);
  const below = await sandbox.files.watch(`${folder}/d`);
  await sandbox.files.remove(`${folder}/d`, { recursive: true });
  const all = async () => {
    for await (const _ of below);
  };
  await assert.rejects(all(), NotFoundError);
  await assert.rejects(sandbox.files.watch(`${folder}/no`), NotFoundError);
  const controller = new AbortController();
  const watched = await sandbox.files.watch(folder, { signal: controller.signal });
  const reason = new Error("enough");
  setTimeout(() => controller.abort(reason), 50);
  const waiting = async () => {
    for await (const _ of watched);
  };
  await assert.rejects(waiting(), reason);
});

test("a watch that is closed while it is read ends", async () => {
  const watch = await sandbox.files.watch();
  setTimeout(() => void watch.close(), 50);
  for await (const change of watch) assert.fail(change.path);
});

test("signed URLs", async () => {
  const folder = await newFolder(sandbox);
  const upload = await sandbox.files.sign(`${folder}/f`, "PUT");
  assert.ok((await fetch(upload.url, { method: "PUT", body: "signed" })).ok);
  const download = await sandbox.files.sign(`${folder}/f`, "GET", { expiresInSeconds: 60 });
  assert.equal(await (await fetch(download.url)).text(), "signed");
  assert.ok(download.expiresAt && download.expiresAt > new Date());
  await client.rotateSigningKey();
  assert.equal((await fetch(download.url)).status, 403);
});

test("a repository", async () => {
  const { git } = sandbox;
  await sandbox.runCommand("git init -qb main origin; git init -q --bare bare.git", {
    cwd: "/tmp",
  });
  await sandbox.writeFile("/tmp/origin/a.txt", "a\n");
  const author = { name: "Ada", email: "ada@example.com" };
  const origin = { path: "/tmp/origin" };
  assert.equal((await git.status(origin)).clean, false);
  await git.add(undefined, origin);
  const first = await git.commit("First", { ...origin, author });
  assert.equal(first.branch, "main");
  await assert.rejects(git.commit("Again", { ...origin, author }), ConflictError);
  const cloned = await git.clone("/tmp/origin", { path: "/tmp/copy", timeoutSeconds: 60 });
  assert.equal(cloned.commit, first.commit);
  const copy = { path: "/tmp/copy" };
  await git.checkout("work", { ...copy, create: true });
  await sandbox.writeFile("/tmp/copy/b.txt", "b\n");
  const staged = await git.add(["b.txt"], copy);
  assert.deepEqual(
    staged.files.map(({ path, index }) => [path, index]),
    [["b.txt", "added"]],
  );
  await git.commit("Second", { ...copy, author });
  const pushed = await git.push({ ...copy, setUpstream: true });
  assert.deepEqual([pushed.branch, pushed.remote], ["work", "origin"]);
  assert.equal((await git.pull(copy)).updated, false);
  const { branches, current } = await git.branches(copy);
  assert.equal(current, "work");
  assert.ok(branches.some((branch) => branch.name === "origin/work" && branch.remote));
});
