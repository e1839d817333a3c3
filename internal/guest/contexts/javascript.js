// The JavaScript interpreter of a context.
//
// It is read from a descriptor and run by the Template's node, whatever that is.
// Frames go over descriptors of their own; 0, 1 and 2 are the user's. A frame is
// its length in four bytes and a list of texts, each after its length.
//
// Code runs in V8's REPL mode, by the inspector that is part of node: names can be
// declared again in the next cell, and await is allowed everywhere.
(function (require, load) {
  "use strict";
  const fs = require("fs");
  const path = require("path");
  const util = require("util");
  const vm = require("vm");
  const net = require("net");
  const inspector = require("inspector");
  const Module = require("module");
  const { Writable } = require("stream");

  const REQUESTS = 3, EVENTS = 4, ACKS = 5, LATCH = 6;
  const MAX_DATA = 8 << 20; // bytes of one representation
  const MAX_BUNDLE = 10 << 20; // bytes of all representations of one value
  const MAX_TEXT = 1 << 20; // characters of text/plain
  const MAX_RESULTS = 256;
  const typescript = process.argv.includes("typescript");
  const { setTimeout, setImmediate, Promise, Error } = globalThis;

  const session = new inspector.Session();
  let cell = null; // the one that runs: its name and how to end it
  let resultsLeft = 0;
  let input = null; // process.stdin of the cell
  let unsent = Buffer.alloc(0); // of a frame that an interrupt broke off

  // Frames.

  // queue adds a frame to those that leave with the next.
  function queue(...texts) {
    const parts = [];
    let size = 0;
    for (const text of texts) {
      const data = Buffer.isBuffer(text) ? text : Buffer.from(String(text));
      const head = Buffer.alloc(4);
      head.writeUInt32BE(data.length);
      parts.push(head, data);
      size += 4 + data.length;
    }
    const head = Buffer.alloc(4);
    head.writeUInt32BE(size);
    unsent = Buffer.concat([unsent, head, ...parts]);
  }

  function send(...texts) {
    queue(...texts);
    while (unsent.length > 0) unsent = unsent.subarray(fs.writeSync(EVENTS, unsent));
  }

  function split(body) {
    const texts = [];
    for (let at = 0; at < body.length; ) {
      const size = body.readUInt32BE(at);
      texts.push(body.toString("utf8", at + 4, at + 4 + size));
      at += 4 + size;
    }
    return texts;
  }

  function receive(run) {
    let held = Buffer.alloc(0);
    const socket = new net.Socket({ fd: REQUESTS, readable: true, writable: false });
    socket.on("data", (data) => {
      held = held.length ? Buffer.concat([held, data]) : data;
      while (held.length >= 4) {
        const size = held.readUInt32BE(0);
        if (held.length < 4 + size) break;
        const body = held.subarray(4, 4 + size);
        held = held.subarray(4 + size);
        run(split(body));
      }
    });
    socket.on("error", () => process.exit(0));
    socket.on("end", () => process.exit(0));
  }

  // Results.

  function plain(value) {
    let text;
    try {
      text = util.inspect(value);
    } catch (error) {
      text = `[a value that cannot be inspected: ${error && error.name}]`;
    }
    if (text.length > MAX_TEXT) text = `${text.slice(0, MAX_TEXT)}... (${text.length - MAX_TEXT} characters more)`;
    return text;
  }

  const bundleMethod = Symbol.for("Jupyter.display");

  async function bundleOf(value) {
    const data = {};
    try {
      if (value !== null && typeof value === "object" && typeof value[bundleMethod] === "function") {
        Object.assign(data, await value[bundleMethod]());
      }
    } catch {
      // As if it had none.
    }
    if (!("text/plain" in data)) data["text/plain"] = plain(value);
    return data;
  }

  function encoded(mime, data) {
    if (ArrayBuffer.isView(data)) return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
    if (typeof data === "string" && mime !== "application/json") return data;
    return JSON.stringify(data);
  }

  function emit(data, main) {
    if (--resultsLeft < 0) return send("dropped");
    const texts = [];
    let room = MAX_BUNDLE;
    for (const [mime, content] of Object.entries(data)) {
      let text;
      try {
        text = encoded(mime, content);
        if (text === undefined) continue;
        text = Buffer.from(text);
      } catch {
        continue;
      }
      if (text.length > Math.min(MAX_DATA, room)) continue;
      texts.push(mime, text);
      room -= text.length;
    }
    if (main) return queue("result", "1", ...texts); // what follows is the end of the cell
    send("result", "0", ...texts);
    if (fs.readSync(ACKS, Buffer.alloc(1)) === 0) process.exit(0);
  }

  // display shows values with all their representations, as a notebook does.
  function display(value, options) {
    if (options && options.raw && value !== null && typeof value === "object") return emit(value, false);
    const method = value !== null && typeof value === "object" && value[bundleMethod];
    if (typeof method !== "function") return emit({ "text/plain": plain(value) }, false);
    return bundleOf(value).then((data) => emit(data, false));
  }

  // What V8 compiles.

  const word = /[\w$\u0080-\uffff]/;

  // rewrite replaces import, which REPL mode does not know, by what does the same,
  // and const outside of blocks by let: REPL mode lets a name be declared again,
  // but not as the other of the two.
  function rewrite(code) {
    if (!/\b(import|const)\b/.test(code)) return code;
    let out = "", depth = 0, last = "";
    const braces = []; // of templates: the depth at which each goes on
    for (let i = 0; i < code.length; ) {
      const end = skip(code, i, last);
      if (end > i) {
        out += code.slice(i, end);
        if (code[i] === "`" && code[end - 1] === "{") braces.push(depth++);
        else if (!code.startsWith("//", i) && !code.startsWith("/*", i)) last = '"';
        i = end;
        continue;
      }
      const c = code[i];
      if (c === "}" && braces.length && braces[braces.length - 1] === depth - 1) {
        const end = template(code, i + 1);
        out += code.slice(i, end);
        if (code[end - 1] !== "{") {
          braces.pop();
          depth--;
          last = '"';
        }
        i = end;
        continue;
      }
      if (word.test(c)) {
        let end = i + 1;
        while (end < code.length && word.test(code[end])) end++;
        const name = code.slice(i, end);
        const changed = name === "import" && last !== "." ? importAt(code, i, depth) : null;
        if (name === "const" && last !== "." && depth === 0) {
          out += "let  "; // as long, for the columns of errors
          i = end;
          last = name;
        } else if (changed) {
          out += changed.text;
          i = changed.end;
          last = ";";
        } else {
          out += name;
          i = end;
          last = name;
        }
        continue;
      }
      if ("([{".includes(c)) depth++;
      if (")]}".includes(c)) depth--;
      out += c;
      if (!/\s/.test(c)) last = c;
      i++;
    }
    return out;
  }

  // skip returns where a comment, string, template or regular expression that
  // begins at i ends; i when none does. A template ends early at "${".
  function skip(code, i, last) {
    const c = code[i];
    if (c === "/" && code[i + 1] === "/") {
      const end = code.indexOf("\n", i);
      return end < 0 ? code.length : end;
    }
    if (c === "/" && code[i + 1] === "*") {
      const end = code.indexOf("*/", i + 2);
      return end < 0 ? code.length : end + 2;
    }
    if (c === '"' || c === "'") return quoted(code, i + 1, c);
    if (c === "`") return template(code, i + 1);
    const afterValue = last !== "" && (/[\w$)\]}"]$/.test(last) && !/^(return|typeof|case|in|of|delete|void|throw|new|else|do|await|yield)$/.test(last));
    if (c === "/" && !afterValue) return expression(code, i + 1);
    return i;
  }

  function quoted(code, i, quote) {
    for (; i < code.length && code[i] !== "\n"; i++) {
      if (code[i] === "\\") i++;
      else if (code[i] === quote) return i + 1;
    }
    return i;
  }

  function template(code, i) {
    for (; i < code.length; i++) {
      if (code[i] === "\\") i++;
      else if (code[i] === "`") return i + 1;
      else if (code[i] === "$" && code[i + 1] === "{") return i + 2;
    }
    return code.length;
  }

  function expression(code, i) {
    for (let inClass = false; i < code.length && code[i] !== "\n"; i++) {
      if (code[i] === "\\") i++;
      else if (code[i] === "[") inClass = true;
      else if (code[i] === "]") inClass = false;
      else if (code[i] === "/" && !inClass) return i + 1;
    }
    return i;
  }

  const declaration = /import\s*(?:([\w$]+)\s*(?:,\s*)?)?(?:\*\s*as\s+([\w$]+)|\{([^}]*)\})?\s*(?:from\s*)?(?:"([^"\n]+)"|'([^'\n]+)')(?:\s*with\s*(\{[^}]*\}))?\s*;?/y;

  // importAt returns what stands for the import at i, and where that ends; null
  // when it is none.
  function importAt(code, i, depth) {
    const call = /import(?=\s*\()/y;
    call.lastIndex = i;
    if (call.test(code)) return { text: "__import__", end: i + 6 };
    declaration.lastIndex = i;
    const m = depth === 0 ? declaration.exec(code) : null;
    if (!m) return null;
    const [all, byDefault, space, names, double, single, attributes] = m;
    const loaded = `await __import__(${JSON.stringify(double || single)}${attributes ? `, {with: ${attributes}}` : ""})`;
    const fields = [];
    if (byDefault) fields.push(`default: ${byDefault}`);
    if (names) fields.push(...names.split(",").map((n) => n.trim().replace(/\s+as\s+/, ": ")).filter(Boolean));
    let text = loaded;
    if (space) text = `let ${space} = ${loaded}` + (byDefault ? `, ${byDefault} = ${space}.default` : "");
    else if (fields.length) text = `let {${fields.join(", ")}} = ${loaded}`;
    const lines = all.split("\n").length - 1; // errors below keep their line
    return { text: `${text};${"\n".repeat(lines)}`, end: i + all.length };
  }

  function stripTypes(code) {
    if (typeof Module.stripTypeScriptTypes !== "function") {
      const error = new Error(`TypeScript needs Node.js 22.13 or newer; this is ${process.version}`);
      error.name = "UnsupportedError";
      error.stack = "";
      throw error;
    }
    const warn = process.emitWarning;
    process.emitWarning = () => {}; // that it is experimental
    try {
      return Module.stripTypeScriptTypes(code, { mode: "transform" });
    } finally {
      process.emitWarning = warn;
    }
  }

  function prepared(code) {
    if (typescript) code = stripTypes(code);
    const text = code.trim();
    // An object, not a block.
    if (text.startsWith("{") && text.endsWith("}")) {
      try {
        new vm.Script(`(${text})`);
        code = `(${text})`;
      } catch {
        // A block after all.
      }
    }
    return rewrite(code);
  }

  // Interrupts.

  // Around the code of a cell, node has no handler of SIGINT for moments, and one that
  // came then would end it. The latch is a counter of one or zero: it is one while a
  // cell can be interrupted. Who wants to interrupt it takes the one away first; who
  // has none waits for that interrupt.
  let latched = true;
  let arrived = () => {}; // is called when an interrupt has come
  const ONE = Buffer.from(new BigUint64Array([1n]).buffer);

  function unlatch() {
    if (!latched) return;
    latched = false;
    try {
      fs.writeSync(LATCH, ONE);
    } catch {
      // The code closed it: it cannot be interrupted, only ended.
    }
  }

  // latch says whether no interrupt is on its way.
  function latch() {
    if (latched) return true;
    try {
      fs.readSync(LATCH, Buffer.alloc(8));
    } catch (error) {
      if (error.code === "EAGAIN" || error.code === "EINTR") return false;
    }
    latched = true;
    return true;
  }

  function interrupted() {
    try {
      fs.readSync(LATCH, Buffer.alloc(8)); // it is still one if the code itself sent the signal
    } catch {
      // It was taken, or closed.
    }
    latched = true;
    arrived();
    return new Interrupt();
  }

  // Running.

  let evaluation; // of the cell, as a promise

  function post(method, parameters) {
    return new Promise((resolve, reject) => {
      session.post(method, parameters, (error, reply) => (error ? reject(error) : resolve(reply)));
    });
  }

  // evaluate is called where SIGINT breaks off what it runs.
  function evaluate(expression) {
    evaluation = post("Runtime.evaluate", { expression, replMode: true, objectGroup: "cell" });
    evaluation.catch(() => {});
  }

  let caught;
  let keeper; // the inspector's name of what keeps a value in caught

  // valueOf turns the inspector's name of a value into the value.
  async function valueOf(remote) {
    if (remote.unserializableValue === undefined && remote.objectId === undefined) return remote.value;
    const argument = remote.objectId ? { objectId: remote.objectId } : { unserializableValue: remote.unserializableValue };
    await post("Runtime.callFunctionOn", {
      objectId: keeper, functionDeclaration: "function(v) { this(v) }", arguments: [argument], silent: true,
    });
    const value = caught;
    caught = undefined;
    return value;
  }

  class Interrupt extends Error {
    constructor() {
      super("the execution was interrupted");
      this.name = "KeyboardInterrupt";
      this.stack = `${this.name}: ${this.message}\n`;
    }
  }

  // failureOf is the error that ended an evaluation, with a place where V8 gives
  // none.
  async function failureOf(details, code) {
    const thrown = details.exception ? await valueOf(details.exception) : new Error(details.text);
    if (thrown instanceof SyntaxError && details.lineNumber !== undefined && !/\n\s+at cell-/.test(thrown.stack)) {
      const line = code.split("\n")[details.lineNumber] || "";
      const place = `${cell.name}:${details.lineNumber + 1}\n${line}\n${" ".repeat(details.columnNumber)}^\n\n`;
      thrown.stack = `${place}${thrown.name}: ${thrown.message}\n`;
    }
    return thrown;
  }

  // report sends an error with the frames of the user's code alone.
  function report(thrown) {
    let name = "Error", message, trace;
    try {
      if (thrown instanceof Error || (thrown && typeof thrown.stack === "string")) {
        name = String(thrown.name || "Error");
        message = String(thrown.message);
        const lines = String(thrown.stack).split("\n");
        const ours = lines.findIndex((l) => /^\s+at .*(node:inspector|node:context|Session\.post)/.test(l));
        trace = (ours < 0 ? lines : lines.slice(0, ours)).join("\n").trimEnd();
        if (thrown.cause !== undefined) trace += `\n[cause]: ${plain(thrown.cause)}`;
        if (!trace) trace = `${name}: ${message}`;
      } else {
        message = typeof thrown === "string" ? thrown : plain(thrown);
        trace = `Uncaught ${plain(thrown)}`;
      }
    } catch {
      message = trace = "a value was thrown that cannot be shown";
    }
    send("error", name.slice(0, 200), message.slice(0, MAX_TEXT), `${trace.slice(0, MAX_TEXT)}\n`);
  }

  // What goes on in the background: everything but listening, which may last.
  function pending() {
    const counts = {};
    if (typeof process.getActiveResourcesInfo !== "function") return counts;
    for (const kind of process.getActiveResourcesInfo()) counts[kind] = (counts[kind] || 0) + 1;
    const serves = counts.TCPServerWrap || counts.PipeServerWrap;
    for (const kind of ["TCPServerWrap", "PipeServerWrap", "UDPWrap", "UDPWRAP", "SignalWrap", "FSEventWrap", "TTYWrap"]) delete counts[kind];
    if (serves) delete counts.TCPSocketWrap;
    return counts;
  }

  // quiet waits until nothing is pending but what was before.
  async function quiet(before, over) {
    for (let pause = 0; !over(); pause = Math.min(pause + 1, 10)) {
      await new Promise((resolve) => (pause ? setTimeout(resolve, pause).unref() : setImmediate(resolve)));
      const now = pending();
      if (Object.keys(now).every((kind) => now[kind] <= (before[kind] || 0))) return;
    }
  }

  // compute runs the code of a cell and gives its value.
  async function compute(code) {
    const source = prepared(code);
    try {
      vm.runInThisContext("__evaluate__()", { breakOnSigint: true, filename: "node:context" });
    } catch (error) {
      if (error && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED") throw interrupted();
      throw error;
    }
    unlatch();
    const reply = await evaluation;
    if (reply.exceptionDetails) throw await failureOf(reply.exceptionDetails, source);
    return valueOf(reply.result);
  }

  async function run(count, code) {
    const before = pending();
    let over = false;
    const stopped = new Promise((_, reject) => {
      cell = { name: `cell-${count}`, code, stop: (error) => { over = true; reject(error); } };
    });
    stopped.catch(() => {});
    try {
      const value = await Promise.race([stopped, compute(code)]);
      await Promise.race([stopped, quiet(before, () => over)]);
      if (value !== undefined) emit(await bundleOf(value), true);
      return 0;
    } catch (error) {
      over = true;
      report(error);
      return error instanceof Interrupt ? 130 : 1;
    } finally {
      if (!latch()) await new Promise((resolve) => { arrived = resolve; });
      cell = null;
      session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
    }
  }

  // outputTo is process.stdout or process.stderr. It writes at once, so that an
  // interrupt finds nothing half done that would hold up all that is printed later.
  function outputTo(fd) {
    const stream = new Writable({ write: (data, _, done) => { put(data); done(); } });
    const put = (data, encoding) => {
      const bytes = typeof data === "string" ? Buffer.from(data, encoding) : data;
      for (let at = 0; at < bytes.length; ) at += fs.writeSync(fd, bytes, at);
    };
    stream.write = (data, encoding, done) => {
      if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
      if (typeof data !== "string" && !ArrayBuffer.isView(data)) {
        throw new TypeError("what is written must be a string, Buffer, TypedArray or DataView");
      }
      put(ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : data, encoding);
      if (done) process.nextTick(done);
      return true;
    };
    stream.end = (...rest) => {
      if (rest.length > 0 && typeof rest[0] !== "function" && rest[0] != null) stream.write(...rest);
      else if (typeof rest[rest.length - 1] === "function") process.nextTick(rest[rest.length - 1]);
      return stream;
    };
    stream.destroy = stream.destroySoon = () => stream;
    return Object.assign(stream, { fd, _isStdio: true, isTTY: undefined });
  }

  // Changes around a cell.

  let folder = ""; // that require looks from

  function enter(cwd, env) {
    let was = null;
    if (cwd) {
      was = process.cwd();
      process.chdir(cwd);
    }
    const before = {};
    for (const [key, value] of Object.entries(env)) {
      before[key] = process.env[key];
      process.env[key] = value;
    }
    lookFrom(process.cwd());
    return () => {
      for (const [key, value] of Object.entries(before)) {
        if (value === undefined) delete process.env[key];
        else process.env[key] = value;
      }
      if (was !== null) process.chdir(was);
    };
  }

  function lookFrom(cwd) {
    if (cwd === folder) return;
    folder = cwd;
    globalThis.require = Module.createRequire(path.join(cwd, "cell.js"));
    globalThis.__dirname = cwd;
  }

  function importFrom(specifier, options) {
    specifier = String(specifier);
    if (/^\.{0,2}\//.test(specifier)) specifier = require("url").pathToFileURL(path.resolve(process.cwd(), specifier)).href;
    return load(specifier, options);
  }

  // Random numbers.

  let state = new Uint32Array(4);

  // xoshiro128**, because V8's own generator cannot be seeded again.
  function next() {
    const product = Math.imul(state[1], 5);
    const result = Math.imul((product << 7) | (product >>> 25), 9) >>> 0;
    const t = state[1] << 9;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= t;
    state[3] = (state[3] << 11) | (state[3] >>> 21);
    return result;
  }

  function fresh(size) {
    const data = Buffer.alloc(size);
    const fd = fs.openSync("/dev/urandom", "r");
    for (let at = 0; at < size; ) at += fs.readSync(fd, data, at, size - at, null);
    fs.closeSync(fd);
    return data;
  }

  function seed(hex) {
    const data = fresh(16);
    const given = Buffer.from(hex, "hex");
    for (let i = 0; i < 16; i++) data[i] ^= given[i] ^ given[i + 16];
    state = new Uint32Array(data.buffer.slice(data.byteOffset, data.byteOffset + 16));
    state[0] |= 1;
  }

  // reseed makes random numbers differ from those of any copy of this process.
  // OpenSSL's own generator cannot be told from here, so what node gives of it is
  // taken from the kernel from now on.
  function reseed(hex) {
    seed(hex);
    const crypto = require("crypto");
    const fill = (target, offset = 0, size = target.byteLength - offset) => {
      Buffer.from(target.buffer ?? target, (target.byteOffset ?? 0) + offset, size).set(fresh(size));
      return target;
    };
    crypto.randomBytes = (size, done) => (done ? void process.nextTick(done, null, fresh(size)) : fresh(size));
    crypto.randomFillSync = fill;
    crypto.randomFill = (target, ...rest) => {
      const done = rest.pop();
      process.nextTick(done, null, fill(target, ...rest));
    };
    crypto.randomInt = (low, high, done) => {
      if (typeof high !== "number") [low, high, done] = [0, low, high];
      const value = low + Number(fresh(8).readBigUInt64BE() % BigInt(high - low));
      return done ? void process.nextTick(done, null, value) : value;
    };
    crypto.randomUUID = () => {
      const b = fresh(16);
      b[6] = (b[6] & 0x0f) | 0x40;
      b[8] = (b[8] & 0x3f) | 0x80;
      const h = b.toString("hex");
      return `${h.slice(0, 8)}-${h.slice(8, 12)}-${h.slice(12, 16)}-${h.slice(16, 20)}-${h.slice(20)}`;
    };
    const web = Object.getPrototypeOf(crypto.webcrypto);
    for (const [name, f] of [["getRandomValues", (target) => fill(target)], ["randomUUID", crypto.randomUUID]]) {
      Object.defineProperty(web, name, { value: f, configurable: true, writable: true, enumerable: true });
    }
    Module.syncBuiltinESMExports();
  }

  // Serving.

  async function execute([count, code, cwd, stdin, fill, lasting, ...pairs]) {
    resultsLeft = MAX_RESULTS;
    if (fill) reseed(fill);
    const own = pairs.splice(0, 2 * Number(lasting)); // these stay: this is a copy, and they say whose
    for (let i = 0; i < own.length; i += 2) process.env[own[i]] = own[i + 1];
    if (stdin) input = null;
    const env = {};
    for (let i = 0; i < pairs.length; i += 2) env[pairs[i]] = pairs[i + 1];
    let leave;
    try {
      leave = enter(cwd, env);
    } catch (error) {
      report(error);
      return 1;
    }
    const status = await run(count, code);
    try {
      leave();
    } catch {
      // The folder is gone.
    }
    return process.exitCode ? Number(process.exitCode) & 0xff : status;
  }

  function prepare() {
    session.connect();
    process.argv.splice(1);
    process.execArgv = []; // its children begin as node does
    process.on("SIGINT", () => {
      const interrupt = interrupted();
      if (cell) cell.stop(interrupt);
    });
    process.on("SIGURG", () => reseed(fresh(32).toString("hex"))); // restored: there may be copies
    process.on("uncaughtException", (error) => {
      if (error && error.code === "ERR_INSPECTOR_COMMAND") return; // an evaluation that was interrupted as it began
      if (cell) cell.stop(error);
      else process.stderr.write(`Uncaught ${plain(error)}\n`);
    });
    for (const [name, fd] of [["stdout", 1], ["stderr", 2]]) {
      Object.defineProperty(process, name, { value: outputTo(fd), configurable: true, enumerable: true, writable: true });
    }
    Object.defineProperty(process, "stdin", {
      configurable: true,
      enumerable: true,
      get: () => (input ??= fs.createReadStream("", { fd: 0, autoClose: false })),
    });
    seed(fresh(32).toString("hex"));
    const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
    hidden("display", display);
    hidden("__import__", importFrom);
    hidden("__evaluate__", () => {
      const source = `${prepared(cell.code)}\n//# sourceURL=${cell.name}`;
      unlatch();
      evaluate(source);
      while (!latch()); // breaks off
    });
    const random = { random() { return (next() * 0x200000 + (next() >>> 11)) / 0x20000000000000; } }.random;
    Object.defineProperty(Math, "random", { value: random, configurable: true, writable: true });
    hidden("__keep__", (value) => { caught = value; });
    session.post("Runtime.evaluate", { expression: "__keep__" }, (_, reply) => { keeper = reply.result.objectId; });
    delete globalThis.__keep__;
  }

  prepare();
  let turn = Promise.resolve();
  receive((texts) => {
    turn = turn.then(() => execute(texts)).then((status) => {
      process.exitCode = undefined;
      send("done", status);
    });
  });
})
