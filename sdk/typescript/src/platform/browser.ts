// Browsers and similar runtimes.

import { VERSION } from "../version.js";
import type { Platform } from "./platform.js";

/** The platform of browsers. */
export const platform: Platform = {
  env: () => undefined,
  origin: globalThis.location?.origin,
  streamsUploads: false, // it takes HTTP/2
  headers: { "Cloud-Sandbox-Client": `cloud-sandbox-typescript/${VERSION}` }, // not every browser lets User-Agent be set
  fetchOptions: () => ({}),
  neverSent: () => false, // they do not say
  webSocket: () => Promise.resolve(WebSocket),
  readDockerfile: () =>
    Promise.reject(new TypeError("dockerfile is the path of a file, which a page cannot read")),
};
