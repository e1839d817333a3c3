#!/usr/bin/env node
// Runs the command line that the package of this system carries.
"use strict";
const { spawn } = require("node:child_process");

const name = `cloud-sandbox-cli-${process.platform}-${process.arch}`;
const file = process.platform === "win32" ? "cloud-sandbox.exe" : "cloud-sandbox";
let program;
try {
  program = require.resolve(`${name}/bin/${file}`);
} catch {
  console.error(`cloud-sandbox: the package ${name}, which has the program for this system, is not installed: install it beside cloud-sandbox-cli, with optional dependencies allowed`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends its signals to the program too; others are passed on.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (err) => {
  console.error(`cloud-sandbox: ${program} cannot be started: ${err.message}`);
  process.exit(1);
});
child.on("exit", (code, signal) => {
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  } else {
    process.exit(code);
  }
});
