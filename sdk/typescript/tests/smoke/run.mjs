// Packs the package, installs it as a user has it, and tries it in every runtime there is, against
// the server whose address is CLOUD_SANDBOX_URL. Says of each how it went.

import { spawn, spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { createServer, request } from "node:http";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const SERVER = process.env.CLOUD_SANDBOX_URL ?? "http://localhost:8080";
const DOCS = join(ROOT, "../../docs");
const SECONDS = 60;
const folder = mkdtempSync(join(tmpdir(), "cloud-sandbox-smoke."));
const binary = (name) => join(ROOT, "node_modules/.bin", name);

function install() {
  const packed = run("npm", ["pack", "--silent", "--pack-destination", folder], ROOT).trim();
  const at = join(folder, "node_modules/cloud-sandbox");
  mkdirSync(at, { recursive: true });
  run("tar", ["-xzf", join(folder, packed), "-C", at, "--strip-components=1"]);
  cpSync(join(ROOT, "node_modules/ws"), join(folder, "node_modules/ws"), { recursive: true });
  writeFileSync(join(folder, "package.json"), '{ "type": "module" }');
  cpSync(join(ROOT, "tests/smoke/smoke.js"), join(folder, "smoke.js"));
  const end = 'await smoke(sdk, { userId: "smoke" });\nconsole.log("smoke: ok");\n';
  const head = 'import { smoke } from "./smoke.js";\n';
  writeFileSync(join(folder, "esm.js"), `import * as sdk from "cloud-sandbox";\n${head}${end}`);
  writeFileSync(
    join(folder, "cjs.cjs"),
    `const sdk = require("cloud-sandbox");\nimport("./smoke.js").then(async ({ smoke }) => {\n${end}});\n`,
  );
}

function run(command, args, cwd = folder) {
  const done = spawnSync(command, args, {
    cwd,
    encoding: "utf8",
    timeout: SECONDS * 1000,
    env: { ...process.env, CLOUD_SANDBOX_URL: SERVER, NO_COLOR: "1" },
  });
  if (done.status !== 0) {
    throw new Error(
      `${command} ${args.join(" ")}: ${done.error ?? ""}\n${done.stdout}${done.stderr}`,
    );
  }
  return done.stdout;
}

function says(command, args) {
  const output = run(command, args);
  if (!output.includes("smoke: ok")) throw new Error(`${command} says: ${output}`);
}

function types() {
  for (const name of ["types.mts", "types.cts"]) {
    cpSync(join(ROOT, "tests/smoke/types.ts"), join(folder, name));
  }
  const strictest = { exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true };
  compile(["types.mts", "types.cts"], { ...strictest, types: [] });
}

function examples() {
  for (const name of ["@types/node", "undici-types"]) {
    cpSync(join(ROOT, "node_modules", name), join(folder, "node_modules", name), {
      recursive: true,
    });
  }
  compile(documented(), { types: ["node"], skipLibCheck: true });
}

function compile(files, options) {
  const compilerOptions = {
    ...{ noEmit: true, strict: true, module: "nodenext", target: "es2022" },
    lib: ["es2022", "dom", "dom.iterable", "dom.asynciterable", "esnext.disposable"],
    ...options,
  };
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, files }));
  run(process.execPath, [join(ROOT, "node_modules/typescript/bin/tsc"), "-p", "tsconfig.json"]);
}

/** Writes each example of the documentation into a file, and returns their names. */
function documented() {
  const names = [];
  for (const page of readdirSync(DOCS, { recursive: true }).filter((name) =>
    name.endsWith(".md"),
  )) {
    const text = readFileSync(join(DOCS, page), "utf8");
    for (const [, code] of text.matchAll(/^```typescript\n(.*?)^```$/gms)) {
      const name = `example${names.length}.mts`;
      const imported = code.includes("import ") ? "" : 'import { Sandbox } from "cloud-sandbox";\n';
      writeFileSync(join(folder, name), imported + code);
      names.push(name);
    }
  }
  return names;
}

/** Serves a page and, below the same origin, the API. */
async function page(use) {
  const entry = join(folder, "page.js");
  writeFileSync(
    entry,
    'import * as sdk from "cloud-sandbox";\nimport { smoke } from "./smoke.js";\n' +
      'const tell = (said) => fetch("/said", { method: "POST", body: said });\n' +
      'smoke(sdk, { userId: "smoke" }).then(() => tell("ok"), (err) => tell(String(err?.stack ?? err)));\n',
  );
  const bundle = join(folder, "bundle.js");
  await build({ entryPoints: [entry], bundle: true, format: "esm", outfile: bundle });
  if (/from "node:|require\("/.test(readFileSync(bundle, "utf8"))) {
    throw new Error("the bundle for browsers asks for modules of Node");
  }
  let hear;
  const said = new Promise((resolve) => {
    hear = resolve;
  });
  const api = new URL(SERVER);
  const http = createServer(async (req, res) => {
    if (req.url === "/") {
      res.setHeader("Content-Type", "text/html");
      res.end('<!doctype html><script type="module" src="/bundle.js"></script>');
    } else if (req.url === "/bundle.js") {
      res.setHeader("Content-Type", "text/javascript");
      res.end(readFileSync(bundle));
    } else if (req.url === "/said") {
      const pieces = [];
      for await (const piece of req) pieces.push(piece);
      res.end();
      hear(Buffer.concat(pieces).toString());
    } else {
      const { hostname, port } = api;
      const to = { hostname, port, path: req.url, method: req.method, headers: req.headers };
      const onward = request(to, (answer) => {
        res.writeHead(answer.statusCode ?? 502, answer.headers);
        answer.pipe(res);
      });
      onward.on("error", () => res.destroy());
      res.on("close", () => onward.destroy());
      req.pipe(onward);
    }
  });
  http.on("upgrade", (req, socket, head) => {
    const onward = connect(Number(api.port), api.hostname, () => {
      const { rawHeaders: raw } = req;
      const headers = raw.map((text, at) => (at % 2 ? `${text}\r\n` : `${text}: `)).join("");
      onward.write(`${req.method} ${req.url} HTTP/1.1\r\n${headers}\r\n`);
      onward.write(head);
      socket.pipe(onward).pipe(socket);
    });
    onward.on("error", () => socket.destroy());
    socket.on("error", () => onward.destroy());
  });
  await new Promise((resolve) => {
    http.listen(0, "127.0.0.1", resolve);
  });
  try {
    return await use(`http://127.0.0.1:${http.address().port}/`, said);
  } finally {
    http.closeAllConnections();
    http.close();
  }
}

async function browser(command) {
  await page(async (url, said) => {
    const profile = join(folder, "profile");
    const child = spawn(
      command,
      ["--headless=new", "--no-sandbox", "--disable-gpu", `--user-data-dir=${profile}`, url],
      { stdio: "ignore", detached: true },
    );
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new Error("the page said nothing")), SECONDS * 1000).unref();
    });
    try {
      const result = await Promise.race([said, late]);
      if (result !== "ok") throw new Error(result);
    } finally {
      const ended = new Promise((resolve) => child.on("exit", resolve));
      process.kill(-child.pid, "SIGKILL");
      await ended;
    }
  });
}

// Node 20 has no WebSocket of its own, this one has.
const newer = join(ROOT, "../../.tools/e2b/node");
const found = ["/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
const tries = {
  "types, as ES modules and for require": types,
  "types of the documentation's examples": examples,
  "Node, as ES modules": () => says(process.execPath, ["esm.js"]),
  "Node, by require": () => says(process.execPath, ["cjs.cjs"]),
  ...(existsSync(newer) ? { "Node 22 or newer": () => says(newer, ["esm.js"]) } : {}),
  Bun: () => says(binary("bun"), ["esm.js"]),
  Deno: () => says(binary("deno"), ["run", "-A", "--node-modules-dir=manual", "esm.js"]),
  ...(found ? { Chromium: () => browser(found) } : {}),
};
let failed = 0;
try {
  install();
  for (const [name, attempt] of Object.entries(tries)) {
    const began = performance.now();
    try {
      await attempt();
      console.log(`ok    ${name}  ${((performance.now() - began) / 1000).toFixed(1)} s`);
    } catch (err) {
      failed++;
      console.log(`FAIL  ${name}: ${err.message}`);
    }
  }
  if (!found) console.log("skip  a browser: no chromium is installed");
} finally {
  rmSync(folder, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
