// The same calls for every runtime, without features of a single one.

function equal(got, want, what) {
  if (got !== want) {
    throw new Error(`${what}: ${JSON.stringify(got)}, not ${JSON.stringify(want)}`);
  }
}

/** Uses a Sandbox in every way that depends on the runtime. */
export async function smoke(sdk, options) {
  const { Client, NotFoundError, Sandbox } = sdk;
  const client = new Client(options);
  const sandbox = await Sandbox.create({ client });
  try {
    const execution = await sandbox.runCode("print(6 * 7)");
    equal(execution.stdout, "42\n", "what it prints");
    let streamed = "";
    await sandbox.runCode("print('a'); print('b')", {
      onStdout: (text) => {
        streamed += text;
      },
    });
    equal(streamed, "a\nb\n", "what comes while it runs");

    await sandbox.writeFile("text", "grüß dich");
    equal(await sandbox.readFile("text"), "grüß dich", "a file");
    async function* pieces() {
      for (let n = 0; n < 100; n++) yield "0123456789";
    }
    await sandbox.writeFile("pieces", pieces());
    const stream = await sandbox.readFile("pieces", { format: "stream" });
    equal((await stream.bytes()).length, 1000, "a file in pieces");
    await sandbox.writeFile("blob", new Blob(["blob"]));
    const { readable } = await sandbox.readFile("blob", { format: "stream" });
    equal(await new Response(readable).text(), "blob", "a file as a Web Stream");

    const watch = await sandbox.files.watch(".");
    await sandbox.writeFile("new", "");
    for await (const change of watch) {
      equal(change.path, "/workspace/new", "a change");
      break;
    }

    const terminal = await sandbox.processes.openTerminal("bash --norc");
    await terminal.write("echo $((6 * 7)); exit 3\n");
    let shown = "";
    for await (const data of terminal) shown += new TextDecoder().decode(data);
    equal(shown.includes("42\r\n"), true, `what a terminal shows, ${JSON.stringify(shown)}`);
    equal(terminal.info?.exitCode, 3, "how it ended");

    let err;
    try {
      await sandbox.readFile("none");
    } catch (caught) {
      err = caught;
    }
    equal(err instanceof NotFoundError, true, "the class of an error");

    let ended;
    try {
      await sandbox.runCommand("sleep 60", { signal: AbortSignal.timeout(200) });
    } catch (caught) {
      ended = caught;
    }
    equal(ended?.name, "TimeoutError", "an aborted call");
  } finally {
    equal(await sandbox.kill(), true, "its end");
  }
  const symbol = Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose");
  await sandbox[symbol](); // it has ended already, which is no error
}
