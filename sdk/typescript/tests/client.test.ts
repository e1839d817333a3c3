// The connection: retries, tokens, streams and failures.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import { mock, test } from "node:test";
import { clock } from "../src/clock.js";
import {
  AuthenticationError,
  Client,
  CloudSandboxError,
  ConflictError,
  ConnectionFailedError,
  type Data,
  ExhaustedError,
  ForkError,
  InternalError,
  ProtocolError,
  Sandbox,
  SandboxTimeoutError,
  UnavailableError,
} from "../src/index.js";
import { inTurn, type Reply, Server } from "./server.js";

const SANDBOX_ID = "i0123456789abcdefghij";
const ENTRY = JSON.stringify({ name: "a", path: "/a", type: "file" });
const SESSION = JSON.stringify({ sandbox_id: SANDBOX_ID, state: "running" });
const OK = JSON.stringify({ status: "ok" });
const BUSY: Reply = { status: 429, headers: { "Retry-After": "0" } };

function at(url: string): Sandbox {
  return new Sandbox(new Client({ baseUrl: url, token: "t" }), SANDBOX_ID);
}

test("a broken read is repeated", async () => {
  await using server = await Server.start(inTurn({ drop: true }, { drop: true }, { body: ENTRY }));
  assert.equal((await at(server.url).files.stat("/a")).path, "/a");
  assert.equal(server.received.length, 3);
});

test("a broken execution is found again", async () => {
  await using server = await Server.start(inTurn({ drop: true }, { body: OK }));
  assert.ok((await at(server.url).runCode("x")).ok);
  const [first, second] = server.received;
  assert.equal(first?.headers["idempotency-key"], second?.headers["idempotency-key"]);
  assert.equal(first?.headers["last-event-id"], undefined);
  assert.equal(second?.headers["last-event-id"], "0.0.0");
});

test("what a handler throws ends the execution, whatever its class", async () => {
  for (const thrown of [new Error("mine"), new ConflictError("of another call")]) {
    await using server = await Server.start(({ method }) =>
      method === "DELETE" ? {} : { body: ['event: stdout\ndata: {"text": "a"}\n\n'] },
    );
    const onStdout = () => Promise.reject(thrown);
    await assert.rejects(at(server.url).runCode("x", { onStdout }), thrown);
    const [first, second] = server.received;
    assert.deepEqual([second?.method, second?.path], ["DELETE", "/api/v1/execute"]);
    assert.equal(second?.headers["idempotency-key"], first?.headers["idempotency-key"]);
  }
});

test("a broken creation is repeated with its key", async () => {
  const underWay: Reply = { status: 409, headers: { "Retry-After": "0" } };
  const replies = [BUSY, { drop: true }, ...Array.from({ length: 5 }, () => underWay)];
  await using server = await Server.start(inTurn(...replies, { body: SESSION }, { body: SESSION }));
  const client = new Client({ baseUrl: server.url, token: "t" });
  assert.equal((await Sandbox.create({ client })).sandboxId, SANDBOX_ID);
  const keys = new Set(server.received.map(({ headers }) => headers["idempotency-key"]));
  assert.deepEqual([server.received.length, keys.size], [8, 1]);
  await Sandbox.create({ client, idempotencyKey: "mine" });
  assert.equal(server.received.at(-1)?.headers["idempotency-key"], "mine");
});

test("a key that was used for something else", async () => {
  await using server = await Server.start(() => ({ status: 409 }));
  const made = Sandbox.create({ baseUrl: server.url, token: "t", idempotencyKey: "used" });
  await assert.rejects(made, ConflictError);
  assert.equal(server.received.length, 1);
});

test("keys that no header holds", async () => {
  for (const idempotencyKey of ["", "a b", "ä", "a\n", "k".repeat(256)]) {
    const made = Sandbox.create({ baseUrl: "http://localhost:1", token: "t", idempotencyKey });
    await assert.rejects(made, /idempotencyKey/);
  }
});

test("a delete whose answer got lost", async () => {
  await using server = await Server.start(inTurn({ drop: true }, { status: 404 }));
  await at(server.url).files.remove("/a");
  assert.equal(server.received.length, 2);
});

test("retries end, and can be turned off", async () => {
  await using server = await Server.start(() => ({ status: 503 }));
  await assert.rejects(at(server.url).info(), UnavailableError);
  assert.equal(server.received.length, 4);
  const client = new Client({ baseUrl: server.url, token: "t", maxRetries: 0 });
  await assert.rejects(client.stats(), UnavailableError);
  assert.equal(server.received.length, 5);
  assert.throws(() => new Client({ maxRetries: -1 }), /maxRetries/);
});

test("nobody listens", async () => {
  const taken = createServer();
  await new Promise<void>((resolve) => taken.listen(0, "127.0.0.1", resolve));
  const { port } = taken.address() as { port: number };
  await new Promise((resolve) => taken.close(resolve));
  const err = await at(`http://127.0.0.1:${port}`)
    .info()
    .catch((err) => err);
  assert.ok(err instanceof ConnectionFailedError);
  assert.match(err.message, new RegExp(`cannot reach 127.0.0.1:${port}`));
  assert.deepEqual([err.statusCode, err.sent, err.code], [undefined, false, ""]);
});

test("a server that is late to start", async (t) => {
  const first = await Server.start(() => ({}));
  const { port, url } = first;
  await first[Symbol.asyncDispose]();
  let late: Server | undefined;
  const sleep = clock.sleep;
  t.mock.method(clock, "sleep", async (seconds: number) => {
    late ??= await Server.start(() => ({ body: OK }), port);
    return sleep(seconds);
  });
  // A POST, but nothing had been sent.
  assert.ok((await at(url).runCode("x")).ok);
  await late?.[Symbol.asyncDispose]();
});

test("pieces are sent as they come, and never twice", async () => {
  await using server = await Server.start(inTurn(BUSY));
  const err = await at(server.url)
    .writeFile("/a", ["ü", new Uint8Array([98])])
    .catch((err) => err);
  assert.ok(err instanceof ExhaustedError);
  assert.equal(err.retryAfter, 0);
  assert.equal(server.received[0]?.headers["transfer-encoding"], "chunked");
  assert.equal(server.received[0]?.body, "üb");
});

test("a Blob is sent again", async () => {
  const replies = [BUSY, { status: 502 }, { drop: true }, { body: ENTRY }];
  await using server = await Server.start(inTurn(...replies));
  await at(server.url).writeFile("/a", new Blob(["kept"]));
  assert.deepEqual(
    server.received.map(({ body }) => body),
    ["kept", "kept", "kept", "kept"],
  );
});

test("what the source of a body throws is thrown", async () => {
  await using server = await Server.start(() => ({ body: ENTRY }));
  const err = new Error("mine");
  async function* broken() {
    yield "a";
    throw err;
  }
  await assert.rejects(at(server.url).writeFile("/a", broken()), err);
});

test("what can be written", async () => {
  await using server = await Server.start(() => ({ body: ENTRY }));
  const bytes = new TextEncoder().encode("ü");
  async function* generated() {
    yield "ü";
  }
  const all: Data[] = ["ü", bytes, bytes.buffer, new DataView(bytes.buffer), new Blob(["ü"])];
  all.push(new Blob(["ü"]).stream() as ReadableStream<Uint8Array>, ["ü"], [bytes], generated());
  for (const data of all) {
    await at(server.url).writeFile("/a", data);
    assert.equal(server.received.at(-1)?.body, "ü");
  }
  for (const data of [1, null, undefined, { a: 1 }, [1]]) {
    await assert.rejects(at(server.url).writeFile("/a", data as unknown as Data), TypeError);
  }
});

test("a busy server is asked again as it says", async (t) => {
  const waits: number[] = [];
  t.mock.method(clock, "sleep", async (seconds: number) => {
    waits.push(seconds);
  });
  const busy: Reply = { status: 503, headers: { "Retry-After": "10" } };
  const replies = Array.from({ length: 5 }, () => busy);
  await using server = await Server.start(inTurn(...replies, { body: SESSION }));
  await Sandbox.create({ baseUrl: server.url, token: "t" });
  assert.equal(server.received.length, 6); // more often than after a broken connection
  assert.equal(waits.length, 5);
  assert.ok(waits.every((wait) => wait >= 10 && wait <= 11));
  await using never = await Server.start(() => busy);
  await assert.rejects(Sandbox.create({ baseUrl: never.url, token: "t" }), UnavailableError);
  assert.ok(never.received.length <= 13); // two minutes in all
});

test("reading in pieces", async () => {
  await using server = await Server.start(() => ({ body: ["one", new Uint8Array([255]), "two"] }));
  const sandbox = at(server.url);
  const want = Buffer.concat([Buffer.from("one"), Buffer.from([255]), Buffer.from("two")]);
  const stream = await sandbox.readFile("/a", { format: "stream" });
  assert.ok(want.equals(await stream.bytes()));
  assert.ok(want.equals(await sandbox.readFile("/a", { format: "bytes" })));
  await assert.rejects(sandbox.readFile("/a"), TypeError);
  const { readable } = await sandbox.readFile("/a", { format: "stream" });
  assert.ok(want.equals(new Uint8Array(await new Response(readable).arrayBuffer())));
});

test("leaving a stream early", async () => {
  const pieces = Array.from({ length: 10 }, () => "x".repeat(1000));
  await using server = await Server.start(() => ({ body: pieces }));
  const stream = await at(server.url).readFile("/a", { format: "stream" });
  for await (const piece of stream) {
    assert.ok(piece.length > 0);
    break;
  }
  await stream.close();
  assert.equal((await stream.bytes()).length, 0);
});

test("a stream that breaks", async () => {
  await using server = await Server.start(() => ({ body: ["half"], cut: true }));
  const stream = await at(server.url).readFile("/a", { format: "stream" });
  await assert.rejects(stream.bytes(), ConnectionFailedError);
});

test("a server that says nothing", async () => {
  let answer = () => {};
  const answered = new Promise<void>((resolve) => {
    answer = resolve;
  });
  await using server = await Server.start(async () => {
    await answered;
    return { drop: true };
  });
  mock.timers.enable({ apis: ["setTimeout"] });
  try {
    const run = at(server.url).runCode("x", { timeoutSeconds: 1 });
    run.catch(() => {});
    while (server.received.length === 0) await new Promise((resolve) => setImmediate(resolve));
    mock.timers.tick(71_500); // 1 for the code, 60 for the answer, 10 for the connection
    await assert.rejects(run, SandboxTimeoutError);
  } finally {
    mock.timers.reset();
    answer();
  }
});

test("an aborted signal", async () => {
  await using server = await Server.start(() => new Promise<Reply>(() => {}));
  const reason = new Error("enough");
  const controller = new AbortController();
  const info = at(server.url).info({ signal: controller.signal });
  while (server.received.length === 0) await new Promise((resolve) => setImmediate(resolve));
  controller.abort(reason);
  await assert.rejects(info, reason);
  await assert.rejects(at(server.url).info({ signal: AbortSignal.abort(reason) }), reason);
  const timeout = at(server.url).info({ signal: AbortSignal.timeout(20) });
  await assert.rejects(timeout, { name: "TimeoutError" });
});

test("an aborted signal ends the wait for another try", async () => {
  await using server = await Server.start(() => ({
    status: 503,
    headers: { "Retry-After": "60" },
  }));
  const reason = new Error("enough");
  const controller = new AbortController();
  const info = at(server.url).info({ signal: controller.signal });
  while (server.received.length === 0) await new Promise((resolve) => setImmediate(resolve));
  setTimeout(() => controller.abort(reason), 20);
  await assert.rejects(info, reason);
});

test("connections are used again", async () => {
  const result = `event: result\ndata: ${OK}\n\n`;
  await using server = await Server.start(({ headers }) => ({
    body: headers.accept === "text/event-stream" ? [result] : OK,
  }));
  const sandbox = at(server.url);
  for (let n = 0; n < 10; n++) {
    assert.ok((await sandbox.runCode("x")).ok);
    assert.ok((await sandbox.runCode("x", { onStdout: () => {} })).ok);
  }
  assert.ok(server.connections <= 2, `${server.connections} connections`); // fetch opens one ahead
});

test("tokens are minted once and renewed", async (t) => {
  let now = 1000;
  t.mock.method(clock, "now", () => now);
  let minted = 0;
  await using server = await Server.start(({ path, headers }) => {
    if (path !== "/api/v1/auth/token") {
      assert.equal(headers.authorization, `Bearer t${minted}`);
      return { body: SESSION };
    }
    minted++;
    return { body: JSON.stringify({ access_token: `t${minted}`, expires_in: 600 }) };
  });
  const client = new Client({ baseUrl: server.url, userId: "ann" });
  const [sandbox] = await Promise.all([Sandbox.create({ client }), Sandbox.create({ client })]);
  now += 500;
  await sandbox.info();
  assert.equal(minted, 1);
  now += 50; // 50 s before it expires
  await sandbox.info();
  assert.equal(minted, 2);
  assert.deepEqual(server.problems, []);
});

test("a mint that is refused is asked for again", async () => {
  await using server = await Server.start(() => ({ status: 403 }));
  const client = new Client({ baseUrl: server.url, userId: "ann" });
  for (let n = 1; n <= 2; n++) {
    await assert.rejects(Sandbox.create({ client }), /403/);
    assert.equal(server.received.length, n);
  }
});

test("nobody said who asks", async () => {
  await assert.rejects(Sandbox.create({ baseUrl: "http://box.example:1" }), AuthenticationError);
});

test("a prefix in the address, and IDs that cannot leave their path", async () => {
  await using server = await Server.start(() => ({ body: SESSION }));
  await at(`${server.url}/prefix/`).info();
  assert.equal(server.received[0]?.path, `/prefix/api/v1/sessions/${SANDBOX_ID}`);
  for (const [id, path] of [
    ["../../x?y", "..%2F..%2Fx%3Fy"],
    ["...", "..."],
    ["a:b@c", "a:b@c"],
  ] as const) {
    await Sandbox.connect(id, { baseUrl: server.url, token: "t" });
    assert.equal(server.received.at(-1)?.path, `/api/v1/sessions/${path}`);
  }
  for (const id of ["", ".", ".."]) {
    await assert.rejects(Sandbox.connect(id, { baseUrl: server.url, token: "t" }), TypeError);
  }
});

test("redirects are not followed", async () => {
  await using server = await Server.start(() => ({
    status: 302,
    headers: { Location: "http://localhost:1/" },
  }));
  await assert.rejects(at(server.url).info(), ProtocolError);
});

test("a client or how to make one, not both", async () => {
  const client = new Client({ baseUrl: "http://localhost:1", token: "t" });
  await assert.rejects(Sandbox.list({ client, token: "t" }), /not both/);
});

test("forks of which some do not run", async () => {
  const fork = { error: { code: "exhausted", message: "full", retry_after_seconds: 5 } };
  const forks = [JSON.parse(SESSION), fork];
  await using server = await Server.start(() => ({ body: JSON.stringify({ forks }) }));
  const err = await at(server.url)
    .fork(2)
    .catch((err) => err);
  assert.ok(err instanceof ForkError);
  assert.deepEqual(
    [err.code, err.retryAfter, err.message],
    ["exhausted", 5, "1 of 2 forks do not run: full"],
  );
  assert.equal(err.sandboxes[0].sandboxId, SANDBOX_ID);
  assert.ok(err.errors[0] instanceof ExhaustedError);
});

test("errors have names, and the ID of their request", async () => {
  await using server = await Server.start(() => ({
    status: 500,
    body: JSON.stringify({ error: { code: "internal", message: "ours" } }),
    headers: { "X-Request-Id": "r1" },
  }));
  const err = await at(server.url)
    .info()
    .catch((err) => err);
  assert.ok(err instanceof InternalError && err instanceof CloudSandboxError);
  assert.deepEqual(
    [err.name, err.requestId, String(err)],
    ["InternalError", "r1", "InternalError: ours"],
  );
});
