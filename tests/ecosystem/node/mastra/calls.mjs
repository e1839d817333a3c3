// Makes the calls of @mastra/e2b that the example does not, and those of @mastra/mcp.
import assert from "node:assert/strict";
import { createCodeMode, createTool } from "@mastra/core/tools";
import { E2BCodeModeTransport, E2BSandbox } from "@mastra/e2b";
import { MCPClient } from "@mastra/mcp";

const sandbox = new E2BSandbox({ id: "calls", template: "base", timeout: 120_000, env: { COLOUR: "red" }, metadata: { for: "calls" } });
await sandbox.start();
try {
  // Commands, which take arguments, an environment and a folder, and tell output as it comes.
  const pieces = [];
  const result = await sandbox.executeCommand("bash", ["-c", 'echo "$COLOUR $SIZE $PWD $1"; echo err >&2', "x", "a b"], {
    cwd: "/tmp",
    env: { SIZE: "big" },
    onStdout: (text) => pieces.push(text),
  });
  assert.deepEqual([result.stdout, result.stderr, result.exitCode, result.success], ["red big /tmp a b\n", "err\n", 0, true]);
  assert.equal(pieces.join(""), result.stdout);
  // The package repeats the output of a command that fails.
  const failed = await sandbox.executeCommand("bash", ["-c", "echo no; exit 3"]);
  assert.deepEqual([failed.stdout, failed.exitCode, failed.success], ["no\nno\n", 3, false]);
  const late = await sandbox.executeCommand("sleep", ["60"], { timeout: 500 });
  assert.equal(late.success, false);

  // Processes in the background.
  const reader = await sandbox.processes.spawn("head -n 1");
  assert.ok((await sandbox.processes.list()).some((p) => p.pid === reader.pid && p.running));
  await reader.sendStdin("hello\n");
  const ended = await reader.wait();
  assert.deepEqual([ended.exitCode, ended.stdout], [0, "hello\n"]);
  const sleeper = await sandbox.processes.spawn("sleep 600");
  assert.equal(await sleeper.kill(), true);
  const gone = await sandbox.processes.get("999999");
  assert.equal(gone, undefined);

  // Files. The package does not pass their mode on.
  await sandbox.writeFiles([
    { path: "/tmp/in/one.txt", content: "one" },
    { path: "/tmp/in/two.bin", content: Buffer.from([0xff, 0]) },
  ]);
  const files = await sandbox.executeCommand("bash", ["-c", "cat /tmp/in/one.txt; stat -c ' %s' /tmp/in/two.bin"]);
  assert.equal(files.stdout, "one 2\n");

  // The URL of a port.
  const server = await sandbox.processes.spawn("python3 -m http.server 8000 --directory /tmp/in");
  const url = new URL(await sandbox.networking.getPortUrl(8000));
  assert.equal(url.host, `8000-${sandbox.e2b.sandboxId}.${process.env.E2B_DOMAIN}`);
  await server.kill();

  // Other programs find the sandbox by its name, also when it is paused.
  const other = new E2BSandbox({ id: "calls", template: "base" });
  await other.start();
  assert.equal(other.e2b.sandboxId, sandbox.e2b.sandboxId);
  await other.stop();
  const again = new E2BSandbox({ id: "calls", template: "base" });
  await again.start();
  assert.equal(again.e2b.sandboxId, sandbox.e2b.sandboxId);
  const kept = await again.executeCommand("cat", ["/tmp/in/one.txt"]);
  assert.equal(kept.stdout, "one");
  const info = await again.getInfo();
  assert.deepEqual([info.provider, info.status], ["e2b", "running"]);

  // Programs of the model call tools of the host.
  const double = createTool({
    id: "double",
    description: "Doubles a number.",
    inputSchema: { type: "object", properties: { n: { type: "number" } }, required: ["n"] },
    execute: async ({ n }) => ({ n: 2 * n }),
  });
  const { tool } = createCodeMode({ tools: { double }, sandbox: again }, new E2BCodeModeTransport());
  const run = await tool.execute({ code: "const { n } = await external_double({ n: 21 }); return n;" }, { observe: { span: (_, f) => f() } });
  assert.equal(run.result, 42, JSON.stringify(run));

  await assert.rejects(new E2BSandbox({ id: "nowhere", template: "no-such-template" }).start());
} finally {
  await sandbox.destroy();
}

// The tools of /mcp.
const mcp = new MCPClient({
  servers: {
    sandbox: {
      url: new URL(`${process.env.CLOUD_SANDBOX_URL}/mcp`),
      requestInit: { headers: { Authorization: `Bearer ${process.env.CLOUD_SANDBOX_API_KEY}` } },
    },
  },
});
try {
  const tools = await mcp.listTools();
  const told = await tools.sandbox_run_code.execute({ code: "print(6 * 7)", language: "python" }, {});
  assert.match(JSON.stringify(told), /42/);
} finally {
  await mcp.disconnect();
}
