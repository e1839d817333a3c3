// The server as it describes itself.

import { type Call, get, queryOf } from "./api/call.js";
import type { Schemas, Wire } from "./api/wire.js";
import type { Page } from "./paging.js";
import { type Resources, resourcesOf } from "./session.js";

/** Sandboxes of one Template that are started ahead of demand. */
export interface PoolInfo {
  /** Their Node. */
  node: string;
  /** Their Template. */
  template: string;
  /** Their size. */
  shape: Resources;
  /** How many are ready to be taken. */
  idle: number;
  /** How many are being started. */
  starting: number;
  /** How many shall be ready, as demand and the Node's memory allow. */
  wanted: number;
  /** How many the Pool wants at least. */
  min: number;
  /** How many it wants at most. */
  max: number;
  /** How many requests it served. */
  hits: number;
  /** How many requests found it empty. */
  misses: number;
}

/** A machine that runs Sandboxes. */
export interface NodeInfo {
  /** Its name. */
  name: string;
  /** Its isolation technology. */
  engine: string;
  /** It takes Sandboxes. */
  ready: boolean;
  /** Why it is not ready. */
  reasons: string[];
}

/** How deep your Sandboxes sleep. */
export interface Depths {
  /** Running and in use. */
  active: number;
  /** Running, without a request for 30 seconds. */
  idle: number;
  /** Only on disk. */
  paused: number;
}

/** Present numbers. */
export interface Stats {
  /** Your Sandboxes by state; states without Sandboxes may be absent. */
  sandboxes: Record<string, number>;
  /** The number of your Sandboxes. */
  total: number;
  /** How deep they sleep; `undefined` while the server cannot tell. */
  depths: Depths | undefined;
  /** The server's Pools. */
  pools: PoolInfo[];
  /** The server's Nodes. */
  nodes: NodeInfo[];
}

/** The cost of usage, by the operator's prices. */
export interface Cost {
  /** Such as `"USD"`. */
  currency: string;
  /** For CPUs. */
  vcpu: number;
  /** For memory. */
  memory: number;
  /** For disk. */
  disk: number;
  /** For traffic to the outside. */
  egress: number;
  /** All of it. */
  total: number;
}

/** The charged usage of Sandboxes. */
export interface Usage {
  /** A day of UTC, as `"2026-01-31"`; `undefined` unless grouped by day. */
  day: string | undefined;
  /** `undefined` unless grouped by Sandbox. */
  sandboxId: string | undefined;
  /** Their running time. */
  seconds: number;
  /** CPUs that they could use, times seconds. */
  vcpuSeconds: number;
  /** GiB of memory, times seconds. */
  memoryGibSeconds: number;
  /** GiB of disk, times seconds. */
  diskGibSeconds: number;
  /** Bytes that their connections sent to the outside. */
  egressBytes: number;
  /** Bytes that their connections received. */
  ingressBytes: number;
  /** Its cost; `undefined` if the operator has set no prices. */
  cost: Cost | undefined;
}

/** Which usage is asked for. */
export interface UsageOptions {
  /** The first day, as `"2026-01-31"`. Default: the first of this month. */
  from?: string;
  /** The day after the last, as `"2026-01-31"`. Default: tomorrow. */
  to?: string;
  /** How to split the result. Default: not at all, which gives one row or none. */
  groupBy?: readonly ("day" | "sandbox")[];
  /** Only this Sandbox. */
  sandboxId?: string;
}

/** Asks for present numbers. */
export function stats(): Call<Stats> {
  return get("/api/v1/sandbox/stats", (answer) => {
    const obj = answer.json<Schemas["Stats"]>();
    const depths = obj.object("depths");
    return {
      sandboxes: obj.counts("sandboxes"),
      total: obj.count("total"),
      depths: depths && {
        active: depths.count("active"),
        idle: depths.count("idle"),
        paused: depths.count("paused"),
      },
      pools: obj.list("pools").map(poolOf),
      nodes: obj.list("nodes").map(nodeOf),
    };
  });
}

function poolOf(obj: Wire<Schemas["Pool"]>): PoolInfo {
  return {
    node: obj.text("node"),
    template: obj.text("template"),
    shape: resourcesOf(obj.object("shape")),
    idle: obj.count("idle"),
    starting: obj.count("starting"),
    wanted: obj.count("wanted"),
    min: obj.count("min"),
    max: obj.count("max"),
    hits: obj.count("hits"),
    misses: obj.count("misses"),
  };
}

function nodeOf(obj: Wire<Schemas["Node"]>): NodeInfo {
  return {
    name: obj.text("name"),
    engine: obj.text("engine"),
    ready: obj.flag("ready"),
    reasons: obj.strings("reasons"),
  };
}

/** Asks for a page of usage. */
export function usagePage(asked: UsageOptions, cursor: string | undefined): Call<Page<Usage>> {
  const query = queryOf({
    from: asked.from,
    to: asked.to,
    group_by: asked.groupBy?.join(",") || undefined,
    sandbox_id: asked.sandboxId,
    cursor,
  });
  return get(
    "/api/v1/usage",
    (answer) => {
      const obj = answer.json<Schemas["UsagePage"]>();
      return { items: obj.list("rows").map(usageOf), next: obj.text("next_cursor") };
    },
    { query },
  );
}

function usageOf(obj: Wire<Schemas["UsageRow"]>): Usage {
  const cost = obj.object("cost");
  return {
    day: obj.maybe("day"),
    sandboxId: obj.maybe("sandbox_id"),
    seconds: obj.number("seconds") ?? 0,
    vcpuSeconds: obj.number("vcpu_seconds") ?? 0,
    memoryGibSeconds: obj.number("memory_gib_seconds") ?? 0,
    diskGibSeconds: obj.number("disk_gib_seconds") ?? 0,
    egressBytes: obj.count("egress_bytes"),
    ingressBytes: obj.count("ingress_bytes"),
    cost: cost && {
      currency: cost.text("currency"),
      vcpu: cost.number("vcpu") ?? 0,
      memory: cost.number("memory") ?? 0,
      disk: cost.number("disk") ?? 0,
      egress: cost.number("egress") ?? 0,
      total: cost.number("total") ?? 0,
    },
  };
}
