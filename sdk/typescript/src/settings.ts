// The server's address and the identity: options first, then the environment.

const DEFAULT_BASE_URL = "http://localhost:8080";
const ENV_URL = "CLOUD_SANDBOX_URL";
/** The variable that holds an API key. */
export const ENV_KEY = "CLOUD_SANDBOX_API_KEY";
const ENV_USER = "CLOUD_SANDBOX_USER_ID";
// The same as the command line's, so that both see the same sandboxes.
const DEFAULT_USER_ID = "test";

const VISIBLE = /^[\x21-\x7e]*$/;

/** The address of a server, and an identity. */
export interface ConnectionOptions {
  /**
   * Address of the server. Default: `CLOUD_SANDBOX_URL`, then `http://localhost:8080`; in a browser
   * the page's own origin.
   */
  baseUrl?: string;
  /**
   * A user of dev mode: the client asks the server for tokens. Without a key, and a server on this
   * machine, `CLOUD_SANDBOX_USER_ID`, or `"test"` as in the command line.
   */
  userId?: string;
  /** An API key or bearer token. Default: `CLOUD_SANDBOX_API_KEY`, unless there is a `userId`. */
  apiKey?: string;
  /** A bearer token; another word for `apiKey`. */
  token?: string;
}

/** The settings of a client. */
export interface Settings {
  /** Address of the server, without a slash at its end. */
  baseUrl: string;
  /** The bearer token; undefined for none, or for tokens minted for `userId`. */
  bearer: string | undefined;
  /** The user of minted tokens; used only without a bearer. */
  userId: string | undefined;
}

/**
 * Fills in absent options.
 *
 * An explicit `userId` is stronger than a key of the environment. Without both, for a server on
 * this machine, the user is the environment's or "test". Throws a TypeError for values that cannot
 * work; its message never contains the key.
 */
export function resolve(
  options: ConnectionOptions,
  environ: (name: string) => string | undefined,
  origin?: string,
): Settings {
  const { token, apiKey, userId } = options;
  if (token !== undefined && apiKey !== undefined) {
    throw new TypeError("pass token or apiKey, not both");
  }
  let bearer = token ?? apiKey;
  if (bearer === undefined && userId === undefined) bearer = environ(ENV_KEY) || undefined;
  if (bearer !== undefined && !VISIBLE.test(bearer)) {
    throw new TypeError("the token or API key holds characters that no token has");
  }
  if (bearer === "" || userId === "") {
    throw new TypeError("token, apiKey and userId must not be empty");
  }
  const baseUrl = checked(options.baseUrl || environ(ENV_URL) || origin || DEFAULT_BASE_URL);
  if (bearer === undefined && userId === undefined && isLoopback(baseUrl)) {
    return { baseUrl, bearer, userId: environ(ENV_USER) || DEFAULT_USER_ID };
  }
  return { baseUrl, bearer, userId };
}

/** Whether a server is on this machine. */
export function isLoopback(baseUrl: string): boolean {
  const host = new URL(baseUrl).hostname;
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

function checked(text: string): string {
  let url: URL | undefined;
  try {
    url = new URL(text);
  } catch {
    // The error below names it.
  }
  if (!url || !/^https?:\/\//.test(text) || !url.hostname) {
    throw new TypeError(
      `baseUrl must begin with http:// or https:// and a host, not ${JSON.stringify(text)}`,
    );
  }
  if (url.username || url.password || /[?#]/.test(text)) {
    throw new TypeError("baseUrl must hold no user, password, query or fragment");
  }
  return text.replace(/\/+$/, "");
}
