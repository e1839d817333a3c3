// Claude runs here. Its tools work in a sandbox, and nothing of this machine is read or written.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUILTIN_TOOL_NAMES, query } from "@anthropic-ai/claude-agent-sdk";

const { CLOUD_SANDBOX_URL, CLOUD_SANDBOX_API_KEY } = process.env;
const ofSandbox = "mcp__sandbox__";

/** Refuses every tool that is not one of the sandbox, before it runs. */
async function guard({ tool_name: tool }) {
  if (tool.startsWith(ofSandbox)) return {};
  const reason = `${tool} would run outside of the sandbox; use ${ofSandbox}bash, read, write, edit, glob or grep`;
  return { hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: reason } };
}

const cwd = await mkdtemp(join(tmpdir(), "agent-"));
const messages = query({
  prompt: process.argv[2] ?? "Fix the bug in repo.",
  options: {
    cwd,
    // The tools of the sandbox, and no other server of MCP.
    mcpServers: {
      sandbox: {
        type: "http",
        url: `${CLOUD_SANDBOX_URL}/mcp?tools=claude&session=my-project`,
        headers: { Authorization: `Bearer ${CLOUD_SANDBOX_API_KEY}` },
      },
    },
    strictMcpConfig: true,
    allowedTools: ["mcp__sandbox"],
    permissionMode: "dontAsk",
    // A model that calls Bash means the bash of the sandbox.
    toolAliases: Object.fromEntries(
      ["Bash", "Read", "Write", "Edit", "Glob", "Grep"].map((tool) => [tool, ofSandbox + tool.toLowerCase()]),
    ),
    // None of Claude Code's own tools; the two rules are for files that a prompt mentions with @.
    tools: [],
    disallowedTools: [...BUILTIN_TOOL_NAMES, "Read(//**)", "Edit(//**)"],
    hooks: { PreToolUse: [{ hooks: [guard] }] },
    // No settings, CLAUDE.md or hooks of this machine, and no transcript on it.
    settingSources: [],
    persistSession: false,
  },
});

for await (const message of messages) {
  if (message.type !== "result") continue;
  if (message.subtype !== "success") throw new Error(message.subtype);
  console.log(message.result);
}
await rm(cwd, { recursive: true });
