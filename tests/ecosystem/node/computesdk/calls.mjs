// Makes all calls of a provider of ComputeSDK. Its own suite for providers is not on npm.
import assert from "node:assert/strict";
import { e2b } from "@computesdk/e2b";

const provider = e2b({});
const sandbox = await provider.sandbox.create({ timeout: 120_000, envs: { COLOUR: "red" }, metadata: { for: "calls" } });
try {
  assert.equal(sandbox.provider, "e2b");
  const info = await sandbox.getInfo();
  assert.deepEqual([info.id, info.status], [sandbox.sandboxId, "running"]);

  // Commands.
  const run = async (command, options) => {
    const { stdout, stderr, exitCode } = await sandbox.runCommand(command, options);
    return [stdout, stderr, exitCode];
  };
  assert.deepEqual(await run("echo out; echo err >&2; exit 3"), ["out\n", "err\n", 3]);
  assert.deepEqual(await run("echo $COLOUR"), ["red\n", "", 0]);
  assert.deepEqual(await run(`sh -c 'echo "$SIZE  $PWD"'`, { cwd: "/tmp", env: { SIZE: "a b" } }), ["a b  /tmp\n", "", 0]);
  assert.deepEqual(await run("printf '%s' 'a | b' | wc -c"), ["5\n", "", 0]);
  assert.equal((await run("no-such-program"))[2], 127);
  assert.notEqual((await run("sleep 60", { timeout: 500 }))[2], 0);
  const began = Date.now();
  assert.equal((await run("sleep 60", { background: true }))[2], 0);
  assert.ok(Date.now() - began < 30_000, "a command in the background was waited for");

  // Files.
  const files = sandbox.filesystem;
  await files.mkdir("/tmp/folder");
  await files.writeFile("/tmp/folder/one.txt", "één");
  await files.mkdir("/tmp/folder/below");
  assert.equal(await files.readFile("/tmp/folder/one.txt"), "één");
  const names = (await files.readdir("/tmp/folder")).map(({ name }) => name);
  assert.deepEqual(names.sort(), ["below", "one.txt"]);
  await files.remove("/tmp/folder/one.txt");
  assert.deepEqual([await files.exists("/tmp/folder"), await files.exists("/tmp/folder/one.txt")], [true, false]);
  await assert.rejects(files.readFile("/nonexistent/file.txt"));

  // Ports.
  const host = `8000-${sandbox.sandboxId}.${process.env.E2B_DOMAIN}`;
  assert.equal(await sandbox.getUrl({ port: 8000 }), `https://${host}`);
  assert.equal(await sandbox.getUrl({ port: 8000, protocol: "wss" }), `wss://${host}`);

  // Other programs find it.
  const found = await provider.sandbox.getById(sandbox.sandboxId);
  assert.equal((await found.runCommand("ls /tmp/folder")).stdout, "below\n");
  assert.ok((await provider.sandbox.list()).some(({ sandboxId }) => sandboxId === sandbox.sandboxId));
  assert.equal(await provider.sandbox.getById("inosuchsandbox"), null);

  // Snapshots, from which others start.
  const snapshot = await provider.snapshot.create(sandbox.sandboxId, { name: "computesdk-calls" });
  const copy = await provider.sandbox.create({ snapshotId: snapshot.id });
  assert.equal((await copy.runCommand("ls /tmp/folder")).stdout, "below\n");
  await copy.destroy();
  await provider.snapshot.delete(snapshot.id);
  const template = await provider.sandbox.create({ templateId: "base" });
  await template.destroy();
  await assert.rejects(provider.sandbox.create({ templateId: "no-such-template" }), /no-such-template/);
} finally {
  await sandbox.destroy();
}
assert.equal(await provider.sandbox.getById(sandbox.sandboxId), null);
