"""The server itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from cloud_sandbox.models import Cost, Depths, NodeInfo, PoolInfo, Stats, Usage

from . import fields
from .call import Answer, Call, get
from .sessions import resources


def stats() -> Call[Stats]:
    """Ask for present numbers."""
    return get("/api/v1/sandbox/stats", _stats)


def usage(
    first: date | None,
    end: date | None,
    group_by: Sequence[str],
    sandbox_id: str | None,
    cursor: str | None,
) -> Call[tuple[list[Usage], str]]:
    """Ask for a page of what was used, and where the next one begins."""
    asked = {
        "from": first.isoformat() if first else "",
        "to": end.isoformat() if end else "",
        "group_by": ",".join(group_by),
        "sandbox_id": sandbox_id or "",
        "cursor": cursor or "",
    }
    query = {name: value for name, value in asked.items() if value}
    return get("/api/v1/usage", _usage_page, query)


def _usage_page(answer: Answer) -> tuple[list[Usage], str]:
    obj = answer.json()
    return [_usage(item) for item in fields.objects(obj, "rows")], fields.text(obj, "next_cursor")


def _usage(obj: fields.Object) -> Usage:
    cost = fields.sub_object(obj, "cost")
    return Usage(
        day=fields.day(obj, "day"),
        sandbox_id=fields.optional_text(obj, "sandbox_id"),
        seconds=fields.number(obj, "seconds") or 0.0,
        vcpu_seconds=fields.number(obj, "vcpu_seconds") or 0.0,
        memory_gib_seconds=fields.number(obj, "memory_gib_seconds") or 0.0,
        disk_gib_seconds=fields.number(obj, "disk_gib_seconds") or 0.0,
        egress_bytes=fields.integer(obj, "egress_bytes") or 0,
        ingress_bytes=fields.integer(obj, "ingress_bytes") or 0,
        cost=None if cost is None else _cost(cost),
    )


def _cost(obj: fields.Object) -> Cost:
    return Cost(
        currency=fields.text(obj, "currency"),
        vcpu=fields.number(obj, "vcpu") or 0.0,
        memory=fields.number(obj, "memory") or 0.0,
        disk=fields.number(obj, "disk") or 0.0,
        egress=fields.number(obj, "egress") or 0.0,
        total=fields.number(obj, "total") or 0.0,
    )


def _stats(answer: Answer) -> Stats:
    obj = answer.json()
    counts = fields.sub_object(obj, "sandboxes") or {}
    return Stats(
        sandboxes={state: fields.integer(counts, state) or 0 for state in counts},
        total=fields.integer(obj, "total") or 0,
        depths=_depths(fields.sub_object(obj, "depths")),
        pools=tuple(_pool(item) for item in fields.objects(obj, "pools")),
        nodes=tuple(_node(item) for item in fields.objects(obj, "nodes")),
    )


def _depths(obj: fields.Object | None) -> Depths | None:
    if obj is None:
        return None
    return Depths(
        active=fields.integer(obj, "active") or 0,
        idle=fields.integer(obj, "idle") or 0,
        paused=fields.integer(obj, "paused") or 0,
    )


def _pool(obj: fields.Object) -> PoolInfo:
    return PoolInfo(
        node=fields.text(obj, "node"),
        template=fields.text(obj, "template"),
        shape=resources(fields.sub_object(obj, "shape")),
        idle=fields.integer(obj, "idle") or 0,
        starting=fields.integer(obj, "starting") or 0,
        wanted=fields.integer(obj, "wanted") or 0,
        min=fields.integer(obj, "min") or 0,
        max=fields.integer(obj, "max") or 0,
        hits=fields.integer(obj, "hits") or 0,
        misses=fields.integer(obj, "misses") or 0,
    )


def _node(obj: fields.Object) -> NodeInfo:
    return NodeInfo(
        name=fields.text(obj, "name"),
        engine=fields.text(obj, "engine"),
        ready=fields.flag(obj, "ready"),
        reasons=fields.strings(obj, "reasons"),
    )
