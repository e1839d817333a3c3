import type { Body } from "../api/call.js";

/** A Dockerfile as it is sent. */
export interface Recipe {
  /** Its text. */
  text: string;
  /** Its build context; undefined when it copies nothing. */
  archive: Body | undefined;
}

/** The differences between Node, Bun, Deno and browsers. */
export interface Platform {
  /** Returns a variable of the environment. */
  env(name: string): string | undefined;
  /** The origin of the page; undefined outside of browsers. */
  origin: string | undefined;
  /** Whether a request's body can be sent as it is read. */
  streamsUploads: boolean;
  /** Headers that every request carries. */
  headers: Record<string, string>;
  /** Returns options of `fetch` beside the standard ones. */
  fetchOptions(): object;
  /** Whether an error of `fetch` says that no connection came to be. */
  neverSent(err: unknown): boolean;
  /** Returns the class of WebSockets. */
  webSocket(): Promise<typeof WebSocket>;
  /** Reads a Dockerfile, and prepares its context: by default the folder that it is in. */
  readDockerfile(dockerfile: string, context: string | undefined): Promise<Recipe>;
}
