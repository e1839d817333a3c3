// Rules without a connection: retries, settings, events, fields, archives.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { Decoder, type Event } from "../src/api/sse.js";
import { type Schemas, Wire } from "../src/api/wire.js";
import { ProtocolError } from "../src/errors.js";
import { executionOf } from "../src/execution.js";
import { entryOf } from "../src/filemodels.js";
import { Ignored, readDockerfile } from "../src/platform/dockerfile.js";
import { wholeOf } from "../src/processes.js";
import { type Failure, MAX_RETRIES, MAX_WAIT_SECONDS, waitBefore } from "../src/retry.js";
import { isLoopback, resolve } from "../src/settings.js";
import { padding, tarHeader } from "../src/tar.js";
import { VERSION } from "../src/version.js";

test("when it is tried again", () => {
  const cases: [Failure, boolean, boolean, number | undefined, boolean][] = [
    ["not_sent", false, false, undefined, true], // nothing was sent, not even the body
    ["lost", true, true, undefined, true],
    ["lost", false, true, undefined, false], // it may have happened
    ["lost", true, false, undefined, false], // the body is used up
    ["turned_away", false, true, 1, true],
    ["turned_away", false, true, undefined, false],
    ["turned_away", true, true, undefined, true],
    ["turned_away", true, false, 1, false],
    ["turned_away", true, true, MAX_WAIT_SECONDS + 1, false],
  ];
  for (const [failure, repeatable, replayable, retryAfter, retries] of cases) {
    const wait = (retry: number) =>
      waitBefore({ retry, failure, repeatable, replayable, retryAfter, chance: 0.5 });
    assert.equal(wait(1) !== undefined, retries, failure);
    assert.equal(wait(MAX_RETRIES + 1), undefined);
  }
});

test("waits grow, never undercut the advice, and are bounded in all", () => {
  const waits = (retryAfter: number | undefined, chance: number) =>
    [1, 2, 3].map((retry) =>
      waitBefore({
        retry,
        failure: "turned_away",
        repeatable: true,
        replayable: true,
        retryAfter,
        chance,
      }),
    );
  assert.deepEqual(waits(undefined, 0), [0.05, 0.1, 0.2]);
  assert.deepEqual(waits(5, 0), [5, 5, 5]);
  assert.ok(waits(5, 0.99).every((wait) => wait && wait > 5 && wait < 5.5));
  let waited = 0;
  let asked = 0;
  for (;;) {
    const pause = waitBefore({
      retry: 1,
      failure: "turned_away",
      repeatable: false,
      replayable: true,
      retryAfter: 1,
      chance: 0,
      waited,
    });
    if (pause === undefined) break;
    waited += pause;
    asked++;
  }
  assert.ok(asked < 25 && waited > MAX_WAIT_SECONDS - 10 && waited <= MAX_WAIT_SECONDS);
});

test("where the server is and who asks", () => {
  const env = { CLOUD_SANDBOX_URL: "https://env:1/", CLOUD_SANDBOX_API_KEY: "env-key" };
  const of = (options: object, environ: Record<string, string>) =>
    resolve(options, (name) => environ[name]);
  const settings = (baseUrl: string, bearer?: string, userId?: string) => ({
    baseUrl,
    bearer,
    userId,
  });
  const local = "http://localhost:8080";
  assert.deepEqual(of({}, {}), settings(local, undefined, "test"));
  assert.deepEqual(of({ baseUrl: "http://a" }, {}), settings("http://a"));
  assert.deepEqual(of({}, { CLOUD_SANDBOX_USER_ID: "bob" }), settings(local, undefined, "bob"));
  assert.deepEqual(of({}, env), settings("https://env:1", "env-key"));
  assert.deepEqual(
    of({ baseUrl: "http://a/b/", userId: "ann" }, env),
    settings("http://a/b", undefined, "ann"),
  );
  assert.deepEqual(of({ apiKey: "k" }, env), settings("https://env:1", "k"));
  assert.deepEqual(of({}, { CLOUD_SANDBOX_API_KEY: "" }), settings(local, undefined, "test"));
  for (const baseUrl of ["localhost:8080", "ftp://a", "http://", "http://u:p@a", "http://a?b"]) {
    assert.throws(() => of({ baseUrl }, {}), /baseUrl/, baseUrl);
  }
  for (const token of ["", "a b", "a\nb", "ü"]) {
    assert.throws(
      () => of({ token }, {}),
      (err: Error) => !token || !err.message.includes(token),
    );
  }
  assert.throws(() => of({ token: "a", apiKey: "b" }, {}), /not both/);
  for (const url of ["http://localhost:1", "http://127.8.9.1", "http://[::1]:80"]) {
    assert.ok(isLoopback(url), url);
  }
  for (const url of ["http://localhost.example", "http://10.0.0.1"]) assert.ok(!isLoopback(url));
});

test("events, cut anywhere", () => {
  const stream = new TextEncoder().encode(
    'event: stdout\ndata: {"text": "ü\u2028"}\n\n' +
      ": comment\n\n" +
      "id: 7\r\nevent: b\r\ndata: one\r\ndata:  two\r\n\r\n" +
      "data\r\r" +
      "event: no data\n\n" +
      "event: cut\ndata: off\n",
  );
  for (const size of [1, 2, 3, 7, 1000]) {
    const decoder = new Decoder();
    const events: Event[] = [];
    for (let at = 0; at < stream.length; at += size) {
      events.push(...decoder.feed(stream.subarray(at, at + size)));
    }
    assert.deepEqual(events, [
      { name: "stdout", data: '{"text": "ü\u2028"}', id: "" },
      { name: "b", data: "one\n two", id: "7" },
      { name: "message", data: "", id: "" },
    ]);
  }
});

test("an event without end is refused", () => {
  const decoder = new Decoder(100);
  const feed = (text: string) => decoder.feed(new TextEncoder().encode(text));
  feed("data: x\n\n".repeat(100)); // many small ones are fine
  feed(`data: ${"x".repeat(90)}`);
  assert.throws(() => feed("x".repeat(10)), ProtocolError);
});

test("executions that make no sense", () => {
  const of = (text: string) => executionOf(Wire.parse<Schemas["ExecuteResult"]>(text));
  const wrong = ["", "[]", "null", "{", "[".repeat(100_000), "{}", '{"status": 1}'];
  for (const [key, value] of [
    ["stdout", "[]"],
    ["exit_code", '"0"'],
    ["exit_code", "0.5"],
    ["exit_code", "true"],
    ["error", '"e"'],
    ["results", "{}"],
    ["results", '["r"]'],
    ["results", '[{"png": "!"}]'],
    ["truncated", '{"stdout_bytes_dropped": "1"}'],
  ]) {
    wrong.push(`{"status": "ok", "${key}": ${value}}`);
  }
  for (const text of wrong) assert.throws(() => of(text), ProtocolError, text.slice(0, 60));
  const least = of('{"status": "ok", "stdout": null, "later": 1}');
  assert.deepEqual([least.ok, least.stdout, least.exitCode], [true, "", undefined]);
});

test("times", () => {
  const of = (modified_at: string) =>
    entryOf(new Wire<Schemas["Entry"]>({ path: "/a", modified_at })).modifiedAt;
  const good = {
    "2026-01-02T03:04:05Z": "2026-01-02T03:04:05.000Z",
    "2026-01-02T03:04:05.1Z": "2026-01-02T03:04:05.100Z",
    "2026-01-02T03:04:05.123456789Z": "2026-01-02T03:04:05.123Z",
    "2026-01-02T03:04:05+05:30": "2026-01-01T21:34:05.000Z",
  };
  for (const [text, want] of Object.entries(good)) assert.equal(of(text)?.toISOString(), want);
  assert.equal(of(""), undefined);
  for (const text of ["now", "2026-01-02", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05"]) {
    assert.throws(() => of(text), ProtocolError, text);
  }
});

test("text is cut between characters", () => {
  const bytes = new TextEncoder().encode("aü€😀");
  const whole = (end: number) => new TextDecoder().decode(wholeOf(bytes.subarray(0, end)));
  const want = ["", "a", "a", "aü", "aü", "aü", "aü€", "aü€", "aü€", "aü€", "aü€😀"];
  assert.deepEqual(
    Array.from({ length: 11 }, (_, end) => whole(end)),
    want,
  );
});

test("what a .dockerignore leaves out", () => {
  const ignored = new Ignored("# comment\n*.log\n/build\ndocs/**\n!docs/keep.md\n**/tmp\n");
  for (const name of ["a.log", "build", "build/x", "docs/a.md", "tmp", "a/b/tmp/c"]) {
    assert.ok(ignored.has(name), name);
  }
  for (const name of ["a/b.log", "docs/keep.md", "src/main.go", "# comment"]) {
    assert.ok(!ignored.has(name), name);
  }
  assert.equal(ignored.whole, false);
  assert.equal(new Ignored("a?[bc]\n").has("axb"), true);
});

test("a Dockerfile with its context, as tar reads it", async () => {
  const folder = mkdtempSync(join(tmpdir(), "sdk-"));
  try {
    const long = `${"d".repeat(90)}/${"f".repeat(90)}-é`;
    mkdirSync(join(folder, "in", "d".repeat(90)), { recursive: true });
    writeFileSync(join(folder, "in", long), "long");
    writeFileSync(join(folder, "in", "run.sh"), "echo", { mode: 0o755 });
    writeFileSync(join(folder, "in", "skipped.log"), "");
    writeFileSync(join(folder, "in", ".dockerignore"), "*.log\n");
    symlinkSync("run.sh", join(folder, "in", "link"));
    writeFileSync(join(folder, "in", "Dockerfile"), "FROM base\nCOPY . /app\n");
    const recipe = await readDockerfile(join(folder, "in", "Dockerfile"), undefined);
    assert.ok(recipe.archive && "open" in recipe.archive);
    const pieces: Uint8Array[] = [];
    for await (const piece of recipe.archive.open()) pieces.push(piece);
    mkdirSync(join(folder, "out"));
    const done = spawnSync("tar", ["-xpf", "-", "-C", join(folder, "out")], {
      input: Buffer.concat(pieces),
    });
    assert.equal(done.status, 0, done.stderr.toString());
    const out = (name: string) => readFileSync(join(folder, "out", name), "utf8");
    assert.deepEqual([out(long), out("link"), out(".dockerignore")], ["long", "echo", "*.log\n"]);
    assert.throws(() => out("skipped.log"), /ENOENT/);
    writeFileSync(join(folder, "in", "Dockerfile"), "FROM base\nRUN true\n");
    const alone = await readDockerfile(join(folder, "in", "Dockerfile"), undefined);
    assert.equal(alone.archive, undefined);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test("sizes that a header does not hold", () => {
  const header = tarHeader({ name: "a", size: 2 ** 40, mode: 0o644 });
  assert.match(new TextDecoder().decode(header), /\d+ size=1099511627776\n/);
  assert.deepEqual([padding(0), padding(1), padding(512)], [0, 511, 0]);
});

test("the version, and the licence, are the package's", () => {
  const read = (path: string) => readFileSync(new URL(path, import.meta.url), "utf8");
  assert.equal(VERSION, JSON.parse(read("../package.json")).version);
  assert.equal(read("../LICENSE"), read("../../../LICENSE"));
});
