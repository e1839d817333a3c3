import { Agent } from "@mastra/core/agent";
import { Workspace } from "@mastra/core/workspace";
import { E2BSandbox } from "@mastra/e2b";

const workspace = new Workspace({ sandbox: new E2BSandbox({ id: "my-project", template: "base" }) });
const agent = new Agent({
  id: "worker",
  name: "Worker",
  instructions: "You run commands in a Linux sandbox.",
  model: { id: "openai/gpt-5", url: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY },
  workspace,
});

await workspace.init();
const { text } = await agent.generate("Which user are you?");
console.log(text);
await workspace.destroy();
