import { e2b } from "@computesdk/e2b";
import { compute } from "computesdk";

compute.setConfig({ provider: e2b({ apiKey: process.env.E2B_API_KEY }) });

const sandbox = await compute.sandbox.create();
try {
  await sandbox.filesystem.writeFile("/tmp/hello.py", "print(6 * 7)");
  const { stdout } = await sandbox.runCommand("python3 /tmp/hello.py");
  console.log(stdout);
} finally {
  await sandbox.destroy();
}
