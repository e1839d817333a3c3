// A Sandbox as the server describes it, and the requests about its life.

import { type Answer, type Call, get, once, post, queryOf, segment } from "./api/call.js";
import type { Schemas, Wire, Word } from "./api/wire.js";
import type { Page } from "./paging.js";
import { mountOf, nameOf, type VolumeInfo, type VolumeMount } from "./volumes.js";

/** Limits of a Sandbox. In a request, an absent field has the server's default. */
export interface Resources {
  /** Share of cores; 1 is the time of one core. */
  cpus?: number | undefined;
  /** Memory of all processes together, in MiB. */
  memoryMb?: number | undefined;
  /** Writes to its disk, in MiB. */
  diskMb?: number | undefined;
  /** Processes and threads. */
  pids?: number | undefined;
  /** Bandwidth to the outside in Mbit/s, in each direction; 0 or absent: no limit. */
  bandwidthMbps?: number | undefined;
}

/** Where a Sandbox may connect to. */
export interface NetworkRules {
  /** The default for hosts in neither list: public addresses, or nothing. */
  mode: "public" | "none";
  /** Exceptions: names such as `"*.example.com"`, addresses or networks. */
  allow?: string[];
  /** Exceptions to `allow` and to `mode`. */
  deny?: string[];
}

/** `"public"` for public addresses, `"none"` for nothing, or rules. */
export type Network = "public" | "none" | NetworkRules;

/** Access to the ports of a Sandbox. */
export interface Ports {
  /**
   * Requests need a token, as `portLink` makes it. Default: false, so the Sandbox's ID is enough.
   */
  private?: boolean;
  /** The ports for which `private` is the other way round. */
  exceptions?: number[];
  /** The `Host` header that services receive, such as `"localhost:${PORT}"`. */
  host?: string;
  /** Ports that speak TLS inside. */
  tls?: number[];
}

/**
 * A use of a secret: HTTPS requests to the host get a header with its value, which never enters the
 * Sandbox.
 */
export interface SecretUse {
  /** The name of the secret. */
  name: string;
  /** The host of the requests, such as `"api.example.com"`. */
  host: string;
  /** The name of the header, such as `"Authorization"`. */
  header: string;
  /** The value of the header, such as `"Bearer {value}"`. Default: the secret alone. */
  format?: string;
}

/** The action at the end of a Sandbox's time: save all of it, save its files only, or end it. */
export type OnTimeout = "pause" | "pause_files" | "end";

/** How a Sandbox ended. */
export interface Ended {
  /** Why. */
  cause: Word<Schemas["Ended"]["cause"]>;
  /** When; `undefined` if the server did not say. */
  at: Date | undefined;
  /** The end of its programs' output, at most 4 KiB; empty in lists. */
  outputTail: string;
}

/** A link to one port of a Sandbox: treat it as a password. */
export interface PortLink {
  /** For requests, as the header `E2B-Traffic-Access-Token`. */
  token: string;
  /** Opens the port in a browser; empty if the server has an address and no name. */
  url: string;
  /** When it expires. */
  expiresAt: Date | undefined;
}

/** How one port of a Sandbox is reached, whether something listens or not. */
export interface PortAccess {
  /** 1 to 65,535. */
  port: number;
  /** Requests need a token. */
  private: boolean;
  /** The service speaks TLS inside. */
  tls: boolean;
  /** Its URL; empty if the server has an address and no name. */
  url: string;
}

/** A TCP port that a program in a Sandbox listens on, as the Sandbox reports it. */
export interface OpenPort {
  /** Its number. */
  port: number;
  /** The address that it listens on; `"0.0.0.0"` and `"::"` are all. */
  address: string;
  /** It listens on the loopback address; `url` reaches it all the same. */
  loopback: boolean;
  /** A process that holds it; 0 if none was found. */
  pid: number;
  /** The name of that process. */
  process: string;
  /** It belongs to the agent in the Sandbox. */
  agent: boolean;
  /** Requests need a token, as `portLink` makes it. */
  private: boolean;
  /** The service speaks TLS inside. */
  tls: boolean;
  /** Its URL from outside; empty for the agent's ports, and if the server has no name. */
  url: string;
}

/** One Sandbox as the server describes it at one moment. */
export interface SandboxInfo {
  /** Its ID for life. */
  sandboxId: string;
  /** Its state. */
  state: Word<Schemas["State"]>;
  /** Its name; empty if none. */
  name: string;
  /** The Template it runs. */
  template: string;
  /** The isolation technology, such as `"gvisor"`. */
  engine: string;
  /** Its size at its start. */
  shape: Resources;
  /** Its present limits, within its shape. */
  resources: Resources;
  /** Its network rules; empty if the server did not say. */
  network: Word<"public" | "none"> | NetworkRules;
  /** Access to its ports. */
  ports: Ports;
  /** Its uses of secrets. */
  secrets: SecretUse[];
  /** Its mounted volumes. */
  volumes: VolumeMount[];
  /** The user of its programs; empty for the default. */
  user: string;
  /** The working directory of its programs; empty for the default. */
  cwd: string;
  /** Pairs for your own use. */
  metadata: Record<string, string>;
  /** Its timeout, from its start or from the last change of the timeout. */
  timeoutSeconds: number | undefined;
  /** Its timeout without requests; `undefined` without one. */
  idleTimeoutSeconds: number | undefined;
  /** When it was requested. */
  createdAt: Date | undefined;
  /** When it began to run. */
  startedAt: Date | undefined;
  /** When the server pauses or ends it; for a paused Sandbox, when the server ends it. */
  deadline: Date | undefined;
  /** The action at the deadline. */
  onTimeout: Word<OnTimeout>;
  /** Whether a call that reaches into it resumes it when it is paused. */
  autoResume: boolean;
  /** Grows when its state goes back, as a rollback has it. IDs of processes carry it. */
  timeline: number;
  /**
   * The Snapshot that it is paused in. While it runs, the Snapshot that it came from or was last
   * saved in. Empty without one.
   */
  snapshotId: string;
  /**
   * The Snapshot that it was created from, which may be deleted. Empty if it was created from a
   * Template.
   */
  originSnapshotId: string;
  /** The interval of its checkpoints; `undefined` without checkpoints. */
  checkpointEverySeconds: number | undefined;
  /** The Snapshot that it went back to when it was last lost; empty if it never was. */
  restoredFrom: string;
  /** The running time that was lost then, at most. */
  lostSeconds: number | undefined;
  /** How it ended; `undefined` while it lives. */
  ended: Ended | undefined;
}

/** Options of a new Sandbox. */
export interface SandboxOptions {
  /** Its Template. Default: `"base"`. */
  template?: string;
  /** A name to find it by, unique among your living Sandboxes. */
  name?: string;
  /** How long it may run, up to 86,400. Default: 1,800. */
  timeoutSeconds?: number;
  /** Its timeout without requests, at least 1. Default: none. */
  idleTimeoutSeconds?: number;
  /** The action at the end of its time. Default: `"pause"`. */
  onTimeout?: OnTimeout;
  /** A call that reaches into it resumes it when it is paused. Default: true. */
  autoResume?: boolean;
  /** Its network rules. Default: as the operator decided. */
  network?: Network;
  /** Environment of everything that runs in it. */
  env?: Readonly<Record<string, string>>;
  /** Pairs for your own use. */
  metadata?: Readonly<Record<string, string>>;
  /**
   * Limits. Default: 1 CPU, 512 MiB of memory, 4 GiB of disk, 512 pids. A field that is not given
   * keeps its default.
   */
  resources?: Resources;
  /** Its uses of secrets. */
  secrets?: readonly SecretUse[];
  /**
   * Its volumes by path, as `{"/data": "datasets"}`: volumes of `client.volumes`, or their names or
   * IDs. They cannot change while it lives. A Snapshot has its own.
   */
  volumes?: Readonly<Record<string, VolumeInfo | string>>;
  /** Access to its ports. Default: the ID of the Sandbox is enough. */
  ports?: Ports;
  /**
   * The interval of checkpoints, 10 to 86,400, from which it continues if its machine fails.
   * Default: none.
   */
  checkpointEverySeconds?: number;
  /** The user of its processes. Default: `"user"`. */
  user?: string;
  /** Working directory of processes. Default: `/workspace`. */
  cwd?: string;
  /**
   * With `"return"`, a living Sandbox of yours with this name is returned, without regard to the
   * other options. With `"fail"`, the default, it is a conflict.
   */
  ifExists?: "fail" | "return";
  /**
   * For a day the answer is the same Sandbox for this key, also when another program asks. Default:
   * a new key, so that a call that is tried again makes one Sandbox.
   */
  idempotencyKey?: string;
}

/** Changes of a Sandbox. Absent fields stay as they are. */
export interface SandboxChanges {
  /** Another name; `""` for none. */
  name?: string;
  /** The new deadline, from now. */
  timeoutSeconds?: number;
  /** Its timeout without requests; 0 for none. */
  idleTimeoutSeconds?: number;
  /** The action at the end of its time. */
  onTimeout?: OnTimeout;
  /** Whether calls resume it when it is paused. */
  autoResume?: boolean;
  /** The interval of checkpoints; 0 for none. */
  checkpointEverySeconds?: number;
  /** Pairs to set; a value of `null` removes one. */
  metadata?: Readonly<Record<string, string | null>>;
  /** Variables to set for later programs; a value of `null` removes one. */
  env?: Readonly<Record<string, string | null>>;
  /** Its network rules, at once and for open connections. */
  network?: Network;
  /** The new access to its ports; `{}` for none. */
  ports?: Ports;
  /** All uses of secrets from now on; `[]` for none. */
  secrets?: readonly SecretUse[];
  /** Limits, at once and for processes that run. */
  resources?: Resources;
  /** The user of new programs; `""` for the default. */
  user?: string;
  /** The working directory of new programs; `""` for the default. */
  cwd?: string;
}

/** Starts may wait their turn behind others. */
export const START_SECONDS = 180;

/** Asks for a Sandbox, one for each key. */
export function create(asked: SandboxOptions, snapshotId: string | undefined): Call<SandboxInfo> {
  const body = {
    template: asked.template,
    name: asked.name,
    timeout_seconds: asked.timeoutSeconds,
    idle_timeout_seconds: asked.idleTimeoutSeconds,
    network: asked.network,
    ports: asked.ports,
    secrets: secretsOf(asked.secrets),
    volumes:
      asked.volumes &&
      Object.entries(asked.volumes).map(([path, volume]) => ({ volume: nameOf(volume), path })),
    env: asked.env,
    metadata: asked.metadata,
    resources: limitsOf(asked.resources),
    user: asked.user,
    cwd: asked.cwd,
    if_exists: asked.ifExists,
    on_timeout: asked.onTimeout,
    auto_resume: asked.autoResume,
    snapshot_id: snapshotId,
    checkpoint_every_seconds: asked.checkpointEverySeconds,
  } satisfies Schemas["CreateRequest"];
  const call = post("/api/v1/sessions", oneSession, body, { readSeconds: START_SECONDS });
  return once(call, asked.idempotencyKey);
}

/** Asks for one page of the caller's Sandboxes. */
export function page(
  limit: number | undefined,
  cursor: string | undefined,
  states: readonly string[] | undefined,
  metadata: Readonly<Record<string, string>> | undefined,
): Call<Page<SandboxInfo>> {
  const query = queryOf({ limit, cursor, state: states?.join(",") || undefined });
  for (const [key, value] of Object.entries(metadata ?? {})) query[`metadata[${key}]`] = value;
  return get(
    "/api/v1/sessions",
    (answer) => {
      const obj = answer.json<Schemas["SessionPage"]>();
      return { items: obj.list("sessions").map(sessionOf), next: obj.text("next_cursor") };
    },
    { query },
  );
}

/** Asks for the present state of a Sandbox. */
export function look(sandboxId: string): Call<SandboxInfo> {
  return get(pathOf(sandboxId), oneSession);
}

/** Changes a Sandbox while it runs. Empty values remove a setting. */
export function update(sandboxId: string, changes: SandboxChanges): Call<SandboxInfo> {
  const body = {
    name: orNull(changes.name),
    timeout_seconds: changes.timeoutSeconds,
    idle_timeout_seconds: orNull(changes.idleTimeoutSeconds),
    on_timeout: changes.onTimeout,
    auto_resume: changes.autoResume,
    checkpoint_every_seconds: orNull(changes.checkpointEverySeconds),
    metadata: changes.metadata,
    env: changes.env,
    network: changes.network,
    ports: changes.ports,
    secrets: secretsOf(changes.secrets),
    resources: limitsOf(changes.resources),
    user: orNull(changes.user),
    cwd: orNull(changes.cwd),
  } satisfies Schemas["UpdateRequest"];
  // A repeat moves the deadline by the duration of the retry, and changes nothing else.
  return post(pathOf(sandboxId), oneSession, body, { method: "PATCH", repeatable: true });
}

/** Returns whether a Sandbox has ended, or soon will have. */
export function isOver(info: SandboxInfo): boolean {
  return info.state === "stopping" || info.state === "ended";
}

/** Returns the path of a Sandbox. */
export function pathOf(sandboxId: string): string {
  return `/api/v1/sessions/${segment(sandboxId, "sandbox ID")}`;
}

/** Writes limits as they are sent. */
export function limitsOf(value: Resources | undefined): Schemas["Resources"] | undefined {
  if (!value) return undefined;
  const { memoryMb, diskMb, bandwidthMbps, ...rest } = value;
  // The server refuses unknown limits.
  return { ...rest, memory_mb: memoryMb, disk_mb: diskMb, bandwidth_mbps: bandwidthMbps };
}

/** Writes uses of secrets as they are sent. */
export function secretsOf(
  uses: readonly SecretUse[] | undefined,
): NonNullable<Schemas["SecretUses"]> | undefined {
  return uses && [...uses];
}

function orNull<T extends string | number>(value: T | undefined): T | null | undefined {
  return value === "" || value === 0 ? null : value;
}

/** Decodes one Sandbox. */
export function oneSession(answer: Answer): SandboxInfo {
  return sessionOf(answer.json());
}

/** Decodes a Sandbox that is part of an answer. */
export function sessionOf(obj: Wire<Schemas["Sandbox"]>): SandboxInfo {
  const ended = obj.object("ended");
  return {
    sandboxId: obj.required("sandbox_id"),
    state: obj.text("state"),
    name: obj.text("name"),
    template: obj.text("template"),
    engine: obj.text("engine"),
    shape: resourcesOf(obj.object("shape")),
    resources: resourcesOf(obj.object("resources")),
    network: networkOf(obj),
    ports: portsOf(obj.object("ports")),
    secrets: obj.list("secrets").map((use) => use.allTexts() as unknown as SecretUse),
    volumes: obj.list("volumes").map(mountOf),
    user: obj.text("user"),
    cwd: obj.text("cwd"),
    metadata: obj.texts("metadata"),
    timeoutSeconds: obj.number("timeout_seconds"),
    idleTimeoutSeconds: obj.number("idle_timeout_seconds"),
    createdAt: obj.time("created_at"),
    startedAt: obj.time("started_at"),
    deadline: obj.time("deadline"),
    onTimeout: obj.text("on_timeout"),
    autoResume: obj.flag("auto_resume"),
    timeline: obj.count("timeline") || 1,
    snapshotId: obj.text("snapshot_id"),
    originSnapshotId: obj.text("origin_snapshot_id"),
    checkpointEverySeconds: obj.number("checkpoint_every_seconds"),
    restoredFrom: obj.text("restored_from"),
    lostSeconds: obj.number("lost_seconds"),
    ended: ended && {
      cause: ended.text("cause"),
      at: ended.time("at"),
      outputTail: ended.text("output_tail"),
    },
  };
}

function networkOf(obj: Wire<Schemas["Sandbox"]>): SandboxInfo["network"] {
  if (typeof obj.raw("network") !== "object") return obj.text("network");
  const rules = obj.object("network") as Wire<Schemas["NetworkRules"]> | undefined;
  if (!rules) return "";
  return {
    mode: rules.text("mode") as NetworkRules["mode"],
    ...(rules.raw("allow") === undefined ? {} : { allow: rules.strings("allow") }),
    ...(rules.raw("deny") === undefined ? {} : { deny: rules.strings("deny") }),
  };
}

function portsOf(obj: Wire<Schemas["Ports"]> | undefined): Ports {
  if (!obj) return {};
  const host = obj.maybe("host");
  return {
    private: obj.flag("private"),
    ...(obj.raw("exceptions") === undefined ? {} : { exceptions: obj.integers("exceptions") }),
    ...(host === undefined ? {} : { host }),
    ...(obj.raw("tls") === undefined ? {} : { tls: obj.integers("tls") }),
  };
}

/** Decodes limits or a size. */
export function resourcesOf(
  obj: Wire<Schemas["Limits"] | Schemas["Shape"]> | undefined,
): Resources {
  return {
    cpus: obj?.number("cpus"),
    memoryMb: obj?.integer("memory_mb"),
    diskMb: obj?.integer("disk_mb"),
    pids: obj?.integer("pids"),
    bandwidthMbps: obj?.integer("bandwidth_mbps"),
  };
}

/** Decodes the open ports of a Sandbox. */
export function openPorts(answer: Answer): OpenPort[] {
  return answer
    .json<Schemas["Listeners"]>()
    .list("ports")
    .map((obj) => ({
      port: obj.count("port"),
      address: obj.required("address"),
      loopback: obj.flag("loopback"),
      pid: obj.count("pid"),
      process: obj.text("process"),
      agent: obj.flag("agent"),
      private: obj.flag("private"),
      tls: obj.flag("tls"),
      url: obj.text("url"),
    }));
}

/** Decodes the access to a port. */
export function portAccess(answer: Answer): PortAccess {
  const obj = answer.json<Schemas["Port"]>();
  return {
    port: obj.count("port"),
    private: obj.flag("private"),
    tls: obj.flag("tls"),
    url: obj.text("url"),
  };
}

/** Decodes a link to a port. */
export function portLink(answer: Answer): PortLink {
  const obj = answer.json<Schemas["PortLink"]>();
  return {
    token: obj.required("token"),
    url: obj.text("url"),
    expiresAt: obj.time("expires_at"),
  };
}
