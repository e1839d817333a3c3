"""The life of a Sandbox."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cloud_sandbox.models import (
    OpenPort,
    PortAccess,
    PortLink,
    Resources,
    SandboxInfo,
    VolumeInfo,
)

from . import fields
from .call import (
    Answer,
    Call,
    Path,
    copied,
    get,
    given,
    nothing,
    once,
    path_text,
    post,
    seconds,
    segment,
)
from .records import record
from .volumes import asked

# What starts a Sandbox may wait its turn behind others.
START_SECONDS = 180.0
_ENDED_BY_NULL = ("name", "idle_timeout_seconds", "checkpoint_every_seconds", "user", "cwd")


def create(
    *,
    template: str | None,
    name: str | None,
    timeout_seconds: float | None,
    idle_timeout_seconds: float | None,
    network: str | Mapping[str, object] | None,
    ports: Mapping[str, object] | None,
    secrets: Sequence[Mapping[str, str]] | None,
    volumes: Mapping[str, VolumeInfo | str] | None,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    resources: Resources | Mapping[str, float] | None,
    user: str | None,
    cwd: Path | None,
    if_exists: str | None,
    on_timeout: str | None,
    auto_resume: bool | None,
    snapshot_id: str | None,
    checkpoint_every_seconds: float | None,
    key: str | None,
) -> Call[SandboxInfo]:
    """Ask for a Sandbox, one for each key."""
    body = given(
        template=template,
        name=name,
        timeout_seconds=seconds(timeout_seconds),
        idle_timeout_seconds=seconds(idle_timeout_seconds),
        network=network,
        ports=copied(ports),
        secrets=listed(secrets),
        volumes=asked(volumes),
        env=copied(env),
        metadata=copied(metadata),
        resources=_limits(resources),
        user=user,
        cwd=path_text(cwd),
        if_exists=if_exists,
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        snapshot_id=snapshot_id,
        checkpoint_every_seconds=seconds(checkpoint_every_seconds),
    )
    return once(post("/api/v1/sessions", one, body, read_seconds=START_SECONDS), key)


def listed(secrets: Sequence[Mapping[str, str]] | None) -> list[dict[str, str]] | None:
    """Copy what requests get which secrets."""
    return None if secrets is None else [dict(use) for use in secrets]


def page(
    limit: int | None,
    cursor: str | None,
    states: Sequence[str] | None,
    metadata: Mapping[str, str] | None,
) -> Call[tuple[list[SandboxInfo], str]]:
    """Ask for one page of the caller's Sandboxes, and the cursor of the next."""
    query = {k: str(v) for k, v in given(limit=limit, cursor=cursor).items()}
    if states:
        query["state"] = ",".join(states)
    query.update({f"metadata[{key}]": value for key, value in (metadata or {}).items()})
    return get("/api/v1/sessions", _page, query)


def look(sandbox_id: str) -> Call[SandboxInfo]:
    """Ask what a Sandbox is now."""
    return get(path_of(sandbox_id), one)


def update(sandbox_id: str, changes: Mapping[str, object]) -> Call[SandboxInfo]:
    """Change a Sandbox while it runs. None leaves a value; what is empty ends it."""
    body: dict[str, object] = {}
    for name, value in given(**changes).items():
        if isinstance(value, Resources):
            body[name] = _limits(value)
        elif isinstance(value, Mapping):
            body[name] = dict(value)
        elif name == "secrets":
            body[name] = listed(value)  # type: ignore[arg-type]
        elif isinstance(value, float):
            body[name] = seconds(value)
        elif name in _ENDED_BY_NULL and not value:
            body[name] = None
        else:
            body[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
    # Setting again what is set changes nothing but the deadline, and that by no
    # more than the retry took.
    return post(path_of(sandbox_id), one, body, method="PATCH", repeatable=True)


def touch(sandbox_id: str) -> Call[SandboxInfo]:
    """Start the time of a Sandbox anew."""
    return post(f"{path_of(sandbox_id)}/touch", one, {}, repeatable=True)


def set_timeout(sandbox_id: str, timeout_seconds: float) -> Call[SandboxInfo]:
    """Move the deadline of a Sandbox."""
    body = {"timeout_seconds": seconds(timeout_seconds)}
    return post(f"{path_of(sandbox_id)}/timeout", one, body, repeatable=True)


def ports(sandbox_id: str, *, agent: bool) -> Call[list[OpenPort]]:
    """Ask what listens in a Sandbox."""
    query = {"all": "true"} if agent else {}
    return get(f"{path_of(sandbox_id)}/ports", _ports, query)


def _ports(answer: Answer) -> list[OpenPort]:
    return [
        OpenPort(
            port=fields.integer(obj, "port") or 0,
            address=fields.required_text(obj, "address"),
            loopback=fields.flag(obj, "loopback"),
            pid=fields.integer(obj, "pid") or 0,
            process=fields.text(obj, "process"),
            agent=fields.flag(obj, "agent"),
            private=fields.flag(obj, "private"),
            tls=fields.flag(obj, "tls"),
            url=fields.text(obj, "url"),
        )
        for obj in fields.objects(answer.json(), "ports")
    ]


def port(sandbox_id: str, port: int) -> Call[PortAccess]:
    """Ask how a port is reached."""
    return get(f"{path_of(sandbox_id)}/ports/{int(port)}", _port)


def set_port(
    sandbox_id: str, port: int, *, private: bool | None, tls: bool | None
) -> Call[PortAccess]:
    """Change how a port is reached."""
    body = given(private=private, tls=tls)
    path = f"{path_of(sandbox_id)}/ports/{int(port)}"
    return post(path, _port, body, method="PUT", repeatable=True)


def _port(answer: Answer) -> PortAccess:
    obj = answer.json()
    return PortAccess(
        port=fields.integer(obj, "port") or 0,
        private=fields.flag(obj, "private"),
        tls=fields.flag(obj, "tls"),
        url=fields.text(obj, "url"),
    )


def port_link(sandbox_id: str, port: int, expires_in_seconds: float | None) -> Call[PortLink]:
    """Ask for what opens a port."""
    body = given(expires_in_seconds=seconds(expires_in_seconds))
    path = f"{path_of(sandbox_id)}/ports/{int(port)}/sign"
    return post(path, _port_link, body, repeatable=True)


def _port_link(answer: Answer) -> PortLink:
    return record(PortLink, answer.json())


def delete(sandbox_id: str) -> Call[None]:
    """End a Sandbox."""
    return Call("DELETE", path_of(sandbox_id), nothing, repeatable=True)


def one(answer: Answer) -> SandboxInfo:
    """Decode one Sandbox."""
    return session(answer.json())


def _page(answer: Answer) -> tuple[list[SandboxInfo], str]:
    obj = answer.json()
    found = [session(item) for item in fields.objects(obj, "sessions")]
    return found, fields.text(obj, "next_cursor")


def _network(obj: fields.Object) -> str | Mapping[str, object]:
    if isinstance(obj.get("network"), dict):
        return fields.sub_object(obj, "network") or {}
    return fields.text(obj, "network")


def session(obj: fields.Object) -> SandboxInfo:
    """Decode a Sandbox that is part of an answer."""
    return record(SandboxInfo, obj, network=_network(obj))


def _limits(value: Resources | Mapping[str, float] | None) -> dict[str, object] | None:
    if not isinstance(value, Resources):
        return copied(value)
    return given(
        cpus=value.cpus,
        memory_mb=value.memory_mb,
        disk_mb=value.disk_mb,
        pids=value.pids,
        bandwidth_mbps=value.bandwidth_mbps,
    )


def path_of(sandbox_id: str) -> str:
    """Return the path of a Sandbox."""
    return f"/api/v1/sessions/{segment(sandbox_id, 'sandbox ID')}"
