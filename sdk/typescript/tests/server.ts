// A small real HTTP server whose answers a test decides.

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export interface Received {
  method: string;
  /** As it was sent, without the query. */
  path: string;
  query: Record<string, string>;
  headers: Record<string, string | undefined>;
  body: string;
}

export interface Reply {
  /** Default: 200. */
  status?: number;
  /** Several are sent in chunks of their own. */
  body?: string | Uint8Array | (string | Uint8Array)[];
  headers?: Record<string, string>;
  /** Break the connection instead of answering. */
  drop?: boolean;
  /** Break it after the chunks, without their end. */
  cut?: boolean;
}

export type Answer = (received: Received) => Reply | Promise<Reply>;

/** Answers with the results of `answer`, and keeps the requests. */
export class Server implements AsyncDisposable {
  readonly received: Received[] = [];
  readonly problems: unknown[] = [];
  connections = 0;
  readonly #http;
  readonly #sockets = new Set<Socket>();

  private constructor(answer: Answer) {
    this.#http = createServer((request, response) => {
      this.#serve(answer, request, response).catch((err) => {
        this.problems.push(err);
        response.writeHead(500);
        response.end(String(err));
      });
    });
    this.#http.on("connection", (socket) => {
      this.connections++;
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  static async start(answer: Answer, port = 0): Promise<Server> {
    const server = new Server(answer);
    await new Promise<void>((resolve) => {
      server.#http.listen(port, "127.0.0.1", resolve);
    });
    return server;
  }

  get port(): number {
    return (this.#http.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async #serve(answer: Answer, request: IncomingMessage, response: ServerResponse) {
    const pieces: Buffer[] = [];
    for await (const piece of request) pieces.push(piece);
    const [path = "", query = ""] = (request.url ?? "").split("?");
    const received = {
      method: request.method ?? "",
      path,
      query: Object.fromEntries(new URLSearchParams(query)),
      headers: request.headers as Received["headers"],
      body: Buffer.concat(pieces).toString("utf8"),
    };
    this.received.push(received);
    const reply = await answer(received);
    if (reply.drop) {
      request.socket.destroy();
      return;
    }
    const { status = 200, body = "{}", headers = {} } = reply;
    response.writeHead(status, headers);
    if (!Array.isArray(body)) {
      response.end(body);
      return;
    }
    for (const piece of body) {
      await new Promise<void>((resolve) => response.write(piece, () => resolve()));
    }
    if (reply.cut) request.socket.destroy();
    else response.end();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise<void>((resolve) => {
      this.#http.close(() => resolve());
    });
  }
}

/** Answers with one reply after the other. */
export function inTurn(...replies: Reply[]): Answer {
  return () => {
    const reply = replies.shift();
    if (!reply) throw new Error("one request too many");
    return reply;
  };
}
