// Helpers of the tests against a real server. Its address is CLOUD_SANDBOX_URL; without
// CLOUD_SANDBOX_API_KEY it must be in dev mode.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { Client, Sandbox } from "../../src/index.js";

assert.ok(process.env.CLOUD_SANDBOX_URL, "CLOUD_SANDBOX_URL says where the server is");

/** The address of the server. */
export const URL_OF_SERVER = process.env.CLOUD_SANDBOX_URL.replace(/\/$/, "");

/** Whether users can be made up. */
export const DEV = !process.env.CLOUD_SANDBOX_API_KEY;

/** Returns a new name. */
export function named(prefix = "ts"): string {
  return `${prefix}-${randomUUID().slice(0, 8)}`;
}

/** Returns a client of a user of its own. */
export function newClient(): Client {
  return new Client(DEV ? { userId: named() } : {});
}

/** Makes a folder in a Sandbox. */
export async function newFolder(sandbox: Sandbox): Promise<string> {
  const path = `/workspace/${named("d")}`;
  await sandbox.files.makeDir(path);
  return path;
}

/** Tries until it is true, for a minute. */
export async function eventually(what: () => Promise<boolean>, name: string): Promise<void> {
  const end = performance.now() + 60_000;
  while (!(await what())) {
    assert.ok(performance.now() < end, `${name}: not within a minute`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

/** Uses a Sandbox that ends afterwards. */
export async function withSandbox(
  client: Client,
  use: (sandbox: Sandbox) => Promise<void>,
): Promise<void> {
  await using sandbox = await Sandbox.create({ client });
  await use(sandbox);
}
