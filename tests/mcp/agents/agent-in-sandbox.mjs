// Claude Code works on a copy of a folder in a sandbox, and this program drives it. The key of
// the model's API stays outside: Claude Code has a placeholder, which the server replaces on the
// way to that API.
import { spawn } from "node:child_process";
import { EventEmitter } from "node:events";
import { PassThrough, Writable } from "node:stream";
import { query } from "@anthropic-ai/claude-agent-sdk";
import { Client, ConflictError, Sandbox } from "cloud-sandbox";

const [folder = "repo", prompt = "Fix the bug in repo."] = process.argv.slice(2);
const api = new URL(process.env.ANTHROPIC_BASE_URL ?? "https://api.anthropic.com");

/** A process of a sandbox with the interface of a child process. */
class SandboxProcess extends EventEmitter {
  exitCode = null;
  killed = false;
  stdout = new PassThrough();
  #input = new TransformStream();
  stdin = Writable.fromWeb(this.#input.writable);
  #started;

  constructor(sandbox, { command, args, cwd, env, signal }) {
    super();
    this.#started = sandbox.processes.start([command, ...args], { cwd, env, keepStdin: true });
    this.#follow().catch((error) => this.emit("error", error));
    signal.addEventListener("abort", () => this.kill("SIGKILL"));
  }

  async #follow() {
    const process = await this.#started;
    this.#input.readable.pipeTo(process.stdin).catch(() => {}); // it has ended, which follow tells
    for await (const { stream, data, text } of process.follow()) {
      if (stream === "stdout") this.stdout.write(data);
      else globalThis.process.stderr.write(text);
    }
    this.stdout.end();
    this.exitCode = process.info.exitCode;
    this.emit("exit", this.exitCode, null);
  }

  kill(name) {
    this.killed = true;
    this.#started.then((process) => process.signal(name)).catch((error) => this.emit("error", error));
    return true;
  }
}

const client = new Client();
const secret = ["ANTHROPIC_API_KEY", process.env.ANTHROPIC_API_KEY, { hosts: [api.host] }];
await client.secrets.create(...secret).catch((error) => {
  if (!(error instanceof ConflictError)) throw error; // it exists already
  return client.secrets.replace(...secret);
});
await using sandbox = await Sandbox.create({
  client,
  template: "claude-code",
  resources: { memoryMb: 1024 },
  network: { mode: "none", allow: [api.host] },
  secrets: [{ name: "ANTHROPIC_API_KEY", host: api.host, header: "X-Api-Key" }],
});

await sandbox.files.writeArchive("repo", spawn("tar", ["-cC", folder, "."]).stdout);
await sandbox.runCommand("cp -r repo /tmp/before");

const messages = query({
  prompt,
  options: {
    spawnClaudeCodeProcess: (options) => new SandboxProcess(sandbox, options),
    pathToClaudeCodeExecutable: "/usr/local/bin/claude",
    cwd: "/workspace",
    // All of its environment: nothing of this machine's goes in.
    env: {
      ANTHROPIC_API_KEY: "placeholder",
      ANTHROPIC_BASE_URL: api.href,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    },
    permissionMode: "bypassPermissions",
    allowDangerouslySkipPermissions: true,
  },
});

for await (const message of messages) {
  if (message.type !== "result") continue;
  if (message.subtype !== "success") throw new Error(message.subtype);
  console.log(message.result);
}
console.log((await sandbox.runCommand("diff -ru /tmp/before repo")).stdout);
