// Compiles against the packed package as a program of strict settings would use it.

import { type Execution, NotFoundError, Sandbox, type SandboxInfo } from "cloud-sandbox";

export async function use(signal: AbortSignal): Promise<Execution> {
  await using sandbox = await Sandbox.create({ timeoutSeconds: 60, signal });
  const info: SandboxInfo = await sandbox.info();
  const text: string = await sandbox.readFile(info.cwd);
  const bytes: Uint8Array = await sandbox.readFile(text, { format: "bytes", signal });
  for await (const piece of await sandbox.readFile(text, { format: "stream" })) bytes.set(piece);
  for await (const { path } of await sandbox.files.watch()) void path;
  try {
    await (await sandbox.processes.start("true")).wait();
  } catch (err) {
    if (err instanceof NotFoundError) void err.retryAfter;
  }
  return sandbox.runCode("1", { onResult: (result) => result.png?.length });
}

// @ts-expect-error: a wrong name of an option
export const wrong = Sandbox.create({ timeout: 1 });
