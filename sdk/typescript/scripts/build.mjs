// Compiles the package twice: as ES modules, and for require.
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const compile = (...options) => {
  const tsc = `${root}/node_modules/typescript/bin/tsc`;
  const config = `${root}/tsconfig.build.json`;
  const done = spawnSync(process.execPath, [tsc, "-p", config, ...options], { stdio: "inherit" });
  if (done.status !== 0) process.exit(1);
};

rmSync(`${root}/dist`, { recursive: true, force: true });
compile();
mkdirSync(`${root}/dist/cjs`, { recursive: true });
const scope = {
  type: "commonjs",
  imports: { "#platform": { browser: "./platform/browser.js", default: "./platform/server.js" } },
};
writeFileSync(`${root}/dist/cjs/package.json`, `${JSON.stringify(scope, undefined, 2)}\n`);
compile(
  ...["--outDir", `${root}/dist/cjs`],
  ...["--module", "commonjs", "--moduleResolution", "node10"],
  ...["--verbatimModuleSyntax", "false"],
);
