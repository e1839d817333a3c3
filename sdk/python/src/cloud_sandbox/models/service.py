"""The server as it describes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from .session import Resources


@dataclass(frozen=True)
class PoolInfo:
    """Sandboxes of one Template that are started before anyone asks.

    Attributes:
        node: where they are.
        template: what they are started from.
        shape: their size.
        idle: how many are ready to be taken.
        starting: how many are being started.
        wanted: how many shall be ready, as demand and the Node's memory allow.
        min: how many the Pool wants at least.
        max: how many it wants at most.
        hits: how often it had one.
        misses: how often it had none.
    """

    node: str = ""
    template: str = ""
    shape: Resources = field(default_factory=Resources)
    idle: int = 0
    starting: int = 0
    wanted: int = 0
    min: int = 0
    max: int = 0
    hits: int = 0
    misses: int = 0


@dataclass(frozen=True)
class NodeInfo:
    """A machine that runs Sandboxes.

    Attributes:
        name: its name.
        engine: its isolation technology.
        ready: it takes Sandboxes.
        reasons: why not.
    """

    name: str = ""
    engine: str = ""
    ready: bool = False
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Depths:
    """How deep your Sandboxes sleep.

    Attributes:
        active: running and in use.
        idle: running, and nobody has asked anything of them for 30 seconds.
        paused: only on disk.
    """

    active: int = 0
    idle: int = 0
    paused: int = 0


@dataclass(frozen=True)
class Stats:
    """Present numbers.

    Attributes:
        sandboxes: yours by state; a state that none is in may be absent.
        total: all of yours.
        depths: how deep they sleep; ``None`` while the server cannot tell.
        pools: the server's Pools.
        nodes: the server's Nodes.
    """

    sandboxes: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    depths: Depths | None = None
    pools: tuple[PoolInfo, ...] = ()
    nodes: tuple[NodeInfo, ...] = ()


@dataclass(frozen=True)
class Cost:
    """What usage costs, by the operator's prices.

    Attributes:
        currency: such as ``"USD"``.
        vcpu: for CPUs.
        memory: for memory.
        disk: for disk.
        egress: for what connections sent to the outside.
        total: all of it.
    """

    currency: str = ""
    vcpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    egress: float = 0.0
    total: float = 0.0


@dataclass(frozen=True)
class Usage:
    """What Sandboxes were charged for.

    Attributes:
        day: of UTC; ``None`` when days are not told apart.
        sandbox_id: ``None`` when Sandboxes are not told apart.
        seconds: that they ran.
        vcpu_seconds: CPUs that they could use, times seconds.
        memory_gib_seconds: GiB of memory, times seconds.
        disk_gib_seconds: GiB of disk, times seconds.
        egress_bytes: that connections which they opened sent to the outside.
        ingress_bytes: that these received back.
        cost: what that costs; ``None`` where the operator has set no prices.
    """

    day: date | None = None
    sandbox_id: str | None = None
    seconds: float = 0.0
    vcpu_seconds: float = 0.0
    memory_gib_seconds: float = 0.0
    disk_gib_seconds: float = 0.0
    egress_bytes: int = 0
    ingress_bytes: int = 0
    cost: Cost | None = None
