// The connection to a server.

import { platform } from "#platform";
import { Answer, type Call, isStream, nothing, post } from "./api/call.js";
import * as failures from "./api/failures.js";
import type { Schemas } from "./api/wire.js";
import { Audit } from "./audit.js";
import { clock, unlessAborted } from "./clock.js";
import { AuthenticationError, type CloudSandboxError, ConnectionFailedError } from "./errors.js";
import { Keys } from "./keys.js";
import type { CallOptions } from "./options.js";
import { all } from "./paging.js";
import { type Failure, MAX_RETRIES, waitBefore } from "./retry.js";
import { Secrets } from "./secrets.js";
import { type Stats, stats, type Usage, type UsageOptions, usagePage } from "./service.js";
import { type ConnectionOptions, ENV_KEY, resolve, type Settings } from "./settings.js";
import { Snapshots } from "./snapshots.js";
import { Templates } from "./templates.js";
import { type Incoming, NeverSent, send } from "./transport.js";
import { Users } from "./users.js";
import { Volumes } from "./volumes.js";

/** Options of a {@link Client}. */
export interface ClientOptions extends ConnectionOptions {
  /** How often a call is tried again where that is safe; 0 is never. Default: 3. */
  maxRetries?: number;
}

// A minted token is replaced this long before it expires.
const TOKEN_MARGIN_SECONDS = 60;

/** A try that may be worth another. */
class Failed {
  constructor(
    readonly failure: Failure,
    readonly error: CloudSandboxError,
  ) {}
}

/**
 * A server and an identity. Several Sandboxes can share one client.
 *
 * Making one is optional: `Sandbox.create` makes its own. In dev mode, sharing saves a token for
 * each Sandbox. The platform keeps the connections, so a client needs no close.
 *
 * The constructor throws a TypeError when an option, or a variable of the environment, cannot work.
 */
export class Client {
  /** The audit log of your tenant, for its admins. */
  readonly audit: Audit;
  /** Your API keys. */
  readonly keys: Keys;
  /** Values that no call returns. */
  readonly secrets: Secrets;
  /** The saved states of your Sandboxes. */
  readonly snapshots: Snapshots;
  /** The root filesystems that Sandboxes start from. */
  readonly templates: Templates;
  /** The users of your tenant, for its admins. */
  readonly users: Users;
  /** Files that outlive Sandboxes. */
  readonly volumes: Volumes;

  readonly #settings: Settings;
  readonly #maxRetries: number;
  #minted: { token: Promise<string>; until: number } | undefined;

  constructor(options: ClientOptions = {}) {
    const retries = options.maxRetries ?? MAX_RETRIES;
    if (!(Number.isInteger(retries) && retries >= 0)) {
      throw new TypeError("maxRetries must be a whole number, 0 or more");
    }
    this.#settings = resolve(options, platform.env, platform.origin);
    this.#maxRetries = retries;
    this.audit = new Audit(this);
    this.keys = new Keys(this);
    this.secrets = new Secrets(this);
    this.snapshots = new Snapshots(this);
    this.templates = new Templates(this);
    this.users = new Users(this);
    this.volumes = new Volumes(this);
  }

  /** Address of the server. */
  get baseUrl(): string {
    return this.#settings.baseUrl;
  }

  /** Counts your Sandboxes by state, and describes the server's Pools and Nodes. */
  async stats(options: CallOptions = {}): Promise<Stats> {
    return this.call(stats(), options);
  }

  /**
   * Returns the usage of your Sandboxes by day of UTC, with its cost. Running Sandboxes are counted
   * every minute, and when they pause or end.
   *
   * @throws {@link InvalidRequestError} a value breaks a rule.
   */
  async usage(options: UsageOptions & CallOptions = {}): Promise<Usage[]> {
    return all((cursor) => this.call(usagePage(options, cursor), options));
  }

  /** Revokes all URLs that `files.sign` has made, in all your Sandboxes. */
  async rotateSigningKey(options: CallOptions = {}): Promise<void> {
    await this.call(post("/api/v1/files/sign/rotate", nothing, {}, { repeatable: true }), options);
  }

  /** @internal Whether calls are tried again. */
  get retries(): boolean {
    return this.#maxRetries > 0;
  }

  /** @internal Sends a request and returns its decoded answer. */
  async call<T>(call: Call<T>, options: CallOptions = {}): Promise<T> {
    const { answer, content } = await this.#send(call, options.signal, true);
    return call.decode(new Answer(answer.status, answer.headers, content));
  }

  /** @internal Sends a request and returns its answer to be read. */
  async open(call: Call<unknown>, options: CallOptions = {}): Promise<Incoming> {
    return (await this.#send(call, options.signal, false)).answer;
  }

  /** @internal Returns where a WebSocket is, and the protocols that say who asks. */
  async socketAddress(call: Call<unknown>, signal?: AbortSignal): Promise<[string, string[]]> {
    const protocols = ["cloud-sandbox"];
    const bearer = await this.#bearer(signal);
    if (bearer !== undefined) protocols.push(`bearer.${bearer}`);
    return [this.#url(call).replace(/^http/, "ws"), protocols];
  }

  #url(call: Call<unknown>): string {
    const query = new URLSearchParams(call.query).toString();
    return this.#settings.baseUrl + call.path + (query && `?${query}`);
  }

  /** Sends, retries where that is safe, and returns an answer that is no error. */
  async #send<T>(call: Call<T>, signal: AbortSignal | undefined, read: boolean): Promise<Answered> {
    let retry = 0;
    let lost = false;
    let waited = 0;
    const giveUp = clock.now() + call.readSeconds;
    const replayable = !isStream(call.body) || call.body.replayable;
    for (;;) {
      const outcome: Answered | Failed = await this.#attempt(call, signal, read, lost);
      if (!(outcome instanceof Failed)) return outcome;
      const failure: Failure = outcome.failure;
      const error: CloudSandboxError = outcome.error;
      // A try whose request still runs is waited for as long as for an answer. A server that says
      // when to come back is obeyed within MAX_WAIT_SECONDS.
      const patient =
        (failure === "under_way" && clock.now() < giveUp) ||
        (failure === "turned_away" && (error.retryAfter ?? 0) >= 1);
      if (!patient || this.#maxRetries === 0) retry++;
      lost ||= failure === "lost";
      const wait = waitBefore({
        retry,
        failure,
        repeatable: call.repeatable,
        replayable,
        retryAfter: error.retryAfter,
        chance: clock.random(),
        waited,
        maxRetries: this.#maxRetries,
      });
      if (wait === undefined) {
        if (error instanceof ConnectionFailedError) error.sent = lost;
        throw error;
      }
      if (failure === "turned_away") waited += wait;
      await clock.sleep(wait, signal);
    }
  }

  /**
   * Sends once. Throws failures that no retry can mend.
   *
   * @param lost - an earlier try may have reached the server.
   */
  async #attempt<T>(
    call: Call<T>,
    signal: AbortSignal | undefined,
    read: boolean,
    lost: boolean,
  ): Promise<Answered | Failed> {
    let answer: Incoming;
    let content = new Uint8Array() as Uint8Array;
    const authorization = await this.#authorization(call, signal);
    try {
      answer = await send({
        method: call.method,
        url: this.#url(call),
        headers: { ...platform.headers, ...call.headers, ...authorization },
        body: call.body,
        readSeconds: call.readSeconds,
        signal,
      });
      if (read || answer.status >= 300 || answer.status < 200) content = await answer.all();
    } catch (err) {
      if (err instanceof NeverSent) return new Failed("not_sent", err);
      if (err instanceof ConnectionFailedError) return new Failed("lost", err);
      throw err;
    }
    const { status, headers } = answer;
    // A delete whose answer got lost finds nothing the second time.
    const gone = lost && call.method === "DELETE" && (call.decode as unknown) === nothing;
    if ((status >= 200 && status < 300) || (gone && status === 404)) return { answer, content };
    const error = failures.ofAnswer(status, headers, content);
    const failure = failureOf(status, error, call.keyed);
    if (failure) return new Failed(failure, error);
    throw error;
  }

  async #authorization(
    call: Call<unknown>,
    signal: AbortSignal | undefined,
  ): Promise<Record<string, string>> {
    if (!call.authenticated) return {};
    const bearer = await this.#bearer(signal);
    return bearer === undefined ? {} : { Authorization: `Bearer ${bearer}` };
  }

  async #bearer(signal: AbortSignal | undefined): Promise<string | undefined> {
    const { bearer, userId } = this.#settings;
    if (bearer !== undefined) return bearer;
    if (userId !== undefined) return this.#mintedToken(userId, signal);
    // A proxy in front of the page may add a credential.
    if (platform.origin !== undefined) return undefined;
    throw new AuthenticationError(
      `say who you are: pass userId (dev mode), apiKey or token, or set ${ENV_KEY}`,
    );
  }

  #mintedToken(userId: string, signal: AbortSignal | undefined): Promise<string> {
    if (!this.#minted || clock.now() >= this.#minted.until) {
      const asked = clock.now();
      const minted = { token: Promise.resolve(""), until: Number.POSITIVE_INFINITY };
      // All callers share the token, so no caller's signal ends the request.
      minted.token = this.call(mint(userId)).then(({ token, seconds }) => {
        minted.until = asked + seconds - Math.min(TOKEN_MARGIN_SECONDS, seconds / 2);
        return token;
      });
      minted.token.catch(() => {
        if (this.#minted === minted) this.#minted = undefined;
      });
      this.#minted = minted;
    }
    return unlessAborted(this.#minted.token, signal);
  }
}

interface Answered {
  answer: Incoming;
  content: Uint8Array;
}

/** Asks for a token and its life in seconds; in dev mode anyone gets one. */
function mint(userId: string): Call<{ token: string; seconds: number }> {
  const body: Schemas["TokenRequest"] = { user_id: userId, role: "user" };
  return post(
    "/api/v1/auth/token",
    (answer) => {
      const token = answer.json<Schemas["Token"]>();
      return { token: token.required("access_token"), seconds: token.number("expires_in") ?? 0 };
    },
    body,
    { repeatable: true, authenticated: false },
  );
}

/** Returns how a try failed, if another may go better. */
function failureOf(status: number, error: CloudSandboxError, keyed: boolean): Failure | undefined {
  const advised = error.retryAfter !== undefined;
  // Without advice, 429 is a quota that does not pass.
  if (status === 503 || (status === 429 && advised)) return "turned_away";
  if (status === 502) return "lost"; // a proxy that lost its server, which may have acted
  if (status === 409 && keyed && advised) return "under_way";
  return undefined;
}

/** A {@link Client} to share, or the options of a new one. */
export interface WithClient extends ConnectionOptions {
  /** A connection to share; it replaces the other options of the connection. */
  client?: Client;
}

/** Returns the connection to use. */
export function clientFor(options: WithClient): Client {
  const { client, baseUrl, userId, apiKey, token } = options;
  const own = { baseUrl, userId, apiKey, token };
  if (!client) {
    return new Client(
      Object.fromEntries(Object.entries(own).filter(([, value]) => value !== undefined)),
    );
  }
  if (Object.values(own).some((value) => value !== undefined)) {
    throw new TypeError("pass client, or baseUrl, userId, apiKey and token, not both");
  }
  return client;
}
