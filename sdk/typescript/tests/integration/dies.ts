// Makes a Sandbox, and would end it: the test ends this program before.

import { Sandbox } from "../../src/index.js";

const userId = process.argv[2];
await using sandbox = await Sandbox.create({
  ...(userId ? { userId } : {}),
  timeoutSeconds: 3,
  onTimeout: "end",
});
console.log(sandbox.sandboxId);
await new Promise((resolve) => setTimeout(resolve, 600_000));
