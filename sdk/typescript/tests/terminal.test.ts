// Terminals against a server that misbehaves.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { type WebSocket, WebSocketServer } from "ws";
import { clock } from "../src/clock.js";
import {
  Client,
  ConflictError,
  ConnectionFailedError,
  NotFoundError,
  ProtocolError,
  Sandbox,
  type Terminal,
} from "../src/index.js";

const PROCESS = { process_id: "p1", state: "running", pty: { cols: 80, rows: 24 } };
const ENDED = { process_id: "p1", state: "ended", status: "error", exit_code: 3 };

type Talk = (socket: WebSocket) => unknown;

/** Talks over one connection after the other, and answers requests about the process. */
async function serving(
  talks: Talk[],
  use: (sandbox: Sandbox, paths: string[]) => Promise<void>,
  look: { status: number; body: object } = { status: 200, body: PROCESS },
): Promise<void> {
  const left = [...talks];
  const paths: string[] = [];
  const http = createServer((_, response) => {
    response.writeHead(look.status);
    response.end(JSON.stringify(look.body));
  });
  const sockets = new WebSocketServer({
    noServer: true,
    handleProtocols: (offered) => (offered.has("bearer.t") ? "cloud-sandbox" : false),
  });
  http.on("upgrade", (request, socket, head) => {
    const talk = left.shift();
    if (!talk) {
      socket.end("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
      return;
    }
    paths.push(request.url ?? "");
    sockets.handleUpgrade(request, socket, head, (opened) => talk(opened));
  });
  await new Promise<void>((resolve) => {
    http.listen(0, "127.0.0.1", resolve);
  });
  const { port } = http.address() as AddressInfo;
  const client = new Client({ baseUrl: `http://127.0.0.1:${port}`, token: "t" });
  try {
    await use(new Sandbox(client, "i1"), paths);
  } finally {
    for (const socket of sockets.clients) socket.terminate();
    http.closeAllConnections();
    http.close();
  }
}

function text(socket: WebSocket, type: string, offset = 0, more: object = {}): void {
  socket.send(JSON.stringify({ type, offset, ...more }));
}

function end(socket: WebSocket, offset: number): void {
  text(socket, "end", offset, { process: ENDED });
  socket.close(1000);
}

async function rest(terminal: Terminal): Promise<string> {
  let all = "";
  for await (const data of terminal) all += new TextDecoder().decode(data);
  return all;
}

test("reading goes on where it broke", async (t) => {
  t.mock.method(clock, "sleep", async () => {});
  await serving(
    [
      (socket) => {
        text(socket, "start", 2, { process: PROCESS });
        socket.send(Buffer.from("ab"), () => socket.terminate());
      },
      (socket) => {
        text(socket, "start", 4, { process: PROCESS });
        socket.send(Buffer.alloc(0));
        socket.send(Buffer.from("c"));
        socket.close(1012, "the server restarts");
      },
      (socket) => {
        text(socket, "start", 5, { process: PROCESS });
        text(socket, "dropped", 5, { next_offset: 7 });
        socket.send(Buffer.from("d"), { fin: false });
        socket.send(Buffer.from("e"), { fin: true });
        end(socket, 9);
      },
    ],
    async (sandbox, paths) => {
      const process = await sandbox.processes.get("p1");
      const terminal = await process.attach({ start: 2 });
      assert.equal(await rest(terminal), "abcde");
      assert.deepEqual([terminal.offset, terminal.dropped], [9, 2]);
      assert.deepEqual([terminal.info?.ended, terminal.info?.exitCode], [true, 3]);
      assert.equal(await rest(terminal), "");
      await assert.rejects(terminal.write("late"), ConnectionFailedError);
      assert.deepEqual(
        paths.map((path) => path.split("?")[1]),
        [2, 4, 5].map((offset) => `sandbox_id=i1&from=${offset}`),
      );
    },
  );
});

test("what changed nothing is thrown where it is read", async () => {
  const heard: string[] = [];
  await serving(
    [
      (socket) => {
        text(socket, "start", 0, { process: PROCESS });
        socket.on("message", (data, binary) => {
          heard.push(`${binary ? "bytes" : "text"} ${data}`);
          if (heard.length < 4) return;
          const error = { code: "conflict", message: "the process has ended" };
          text(socket, "error", 0, { error });
          end(socket, 9);
        });
      },
    ],
    async (sandbox) => {
      await using terminal = await (await sandbox.processes.get("p1")).attach();
      await terminal.write("x");
      await terminal.resize(100, 30);
      await terminal.signal("INT");
      await terminal.sendEof();
      await assert.rejects(rest(terminal), ConflictError);
      assert.equal(await rest(terminal), "");
    },
  );
  assert.deepEqual(heard, [
    "bytes x",
    'text {"type":"resize","cols":100,"rows":30}',
    'text {"type":"signal","signal":"INT"}',
    'text {"type":"eof"}',
  ]);
});

test("a WebSocket that is refused tells why", async (t) => {
  t.mock.method(clock, "sleep", async () => {});
  const look = { status: 200, body: PROCESS as object };
  const use = async (sandbox: Sandbox) => {
    const process = await sandbox.processes.get("p1");
    await assert.rejects(process.attach(), ConnectionFailedError);
    look.status = 404;
    look.body = { error: { code: "not_found", message: "there is none" } };
    await assert.rejects(process.attach(), NotFoundError);
  };
  await serving([], use, look);
});

test("messages that make no sense", async () => {
  for (const said of ["{", '{"process": 1}', "[]"]) {
    await serving([(socket) => socket.send(said)], async (sandbox) => {
      await using terminal = await (await sandbox.processes.get("p1")).attach();
      await assert.rejects(rest(terminal), ProtocolError, said);
    });
  }
});

test("output that nobody reads is not kept without bounds, and read later", async (t) => {
  t.mock.method(clock, "sleep", async () => {});
  const piece = Buffer.alloc(1 << 20, "x");
  let sent = 0;
  let left = () => {};
  const leaving = new Promise<void>((resolve) => {
    left = resolve;
  });
  await serving(
    [
      (socket) => {
        text(socket, "start", 0, { process: PROCESS });
        socket.on("close", left);
        const more = () => {
          if (socket.readyState !== 1) return;
          sent++;
          socket.send(piece, more);
        };
        more();
      },
      (socket) => end(socket, 0),
    ],
    async (sandbox, paths) => {
      await using terminal = await (await sandbox.processes.get("p1")).attach({ start: 0 });
      await leaving; // without reading
      let got = 0;
      for await (const data of terminal) got += data.length;
      assert.ok(got >= 8 << 20 && got < 10 << 20, `${got} of ${sent} MiB`);
      assert.equal(paths[1]?.split("from=")[1], String(got));
    },
  );
});
