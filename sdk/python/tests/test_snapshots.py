"""Saving and copying a Sandbox: what is asked of the server, and what comes of its answers."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from cloud_sandbox import (
    ConflictError,
    ExhaustedError,
    ForkError,
    PermissionDeniedError,
    ProtocolError,
    Sandbox,
    VolumeMount,
)

from .conftest import SANDBOX_ID
from .flavours import Flavour
from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]
SandboxAt = Callable[[str], Sandbox]

SESSION: dict[str, object] = {"sandbox_id": SANDBOX_ID, "state": "running"}
FULL: dict[str, object] = {"error": {"code": "exhausted", "message": "no node has room"}}
FORKS = [f"i{n:020}" for n in range(3)]


def reply(**body: object) -> Reply:
    return Reply(body=json.dumps(body).encode())


def snapshot(n: int = 1, **fields: object) -> dict[str, object]:
    return {"snapshot_id": f"s{n:020}", "sandbox_id": SANDBOX_ID, "name": f"n{n}", **fields}


def forking(*forks: dict[str, object]) -> Answer:
    def answer(received: Received) -> Reply:
        return reply(forks=forks) if received.path.endswith("/fork") else reply(**SESSION)

    return answer


def running(*ids: str) -> tuple[dict[str, object], ...]:
    return tuple({"sandbox_id": fork, "state": "running"} for fork in ids)


@pytest.mark.parametrize(
    ("act", "path", "body"),
    [
        (lambda s: s.pause(), "/pause", {}),
        (lambda s: s.pause(memory=False), "/pause", {"memory": False}),
        (lambda s: s.resume(), "/resume", {}),
        (lambda s: s.resume(memory=False), "/resume", {"memory": False}),
        (lambda s: s.rollback("before"), "/rollback", {"snapshot_id": "before"}),
        (lambda s: s.update(on_timeout="end"), "", {"on_timeout": "end"}),
        (lambda s: s.update(auto_resume=False), "", {"auto_resume": False}),
    ],
    ids=["pause", "pause of files", "resume", "reboot", "rollback", "on_timeout", "auto_resume"],
)
def test_what_is_asked(
    serve: Serve,
    sandbox_at: SandboxAt,
    act: Callable[[Sandbox], Any],
    path: str,
    body: dict[str, object],
) -> None:
    state = {"on_timeout": "end", "auto_resume": True, "timeline": 2, "snapshot_id": "s1"}
    server = serve(lambda _: reply(**SESSION, **state))
    info = act(sandbox_at(server.url))
    [received] = server.received
    assert received.path == f"/api/v1/sessions/{SANDBOX_ID}{path}"
    assert json.loads(received.body) == body
    assert (info.on_timeout, info.auto_resume, info.timeline, info.snapshot_id) == (
        *state.values(),
    )


def test_a_snapshot_is_taken_once(serve: Serve, sandbox_at: SandboxAt) -> None:
    drops = [True, False]
    mount = {"volume": "data", "volume_id": "v1", "path": "/data"}
    told = snapshot(uses=2, volumes=[mount])
    server = serve(lambda _: Reply(drop=True) if drops.pop(0) else reply(**told))
    taken = sandbox_at(server.url).snapshot("n1", memory=False)
    assert (taken.snapshot_id, taken.name, taken.uses) == ("s" + "1".zfill(20), "n1", 2)
    assert taken.volumes == (VolumeMount(**mount),)
    first, second = server.received
    assert json.loads(first.body) == {"name": "n1", "memory": False}
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_all_snapshots_page_by_page(sdk: Flavour, serve: Serve) -> None:
    def answer(received: Received) -> Reply:
        first = int(received.query.get("cursor", "0"))
        size = int(received.query.get("limit", "2"))
        page = [snapshot(n) for n in range(first, min(first + size, 5))]
        return reply(snapshots=page, next_cursor=str(first + size) if first + size < 5 else None)

    server = serve(answer)
    with sdk.Client(server.url, token="t") as client:
        found = client.snapshots.list(sandbox_id=SANDBOX_ID)
        assert [one.name for one in found] == ["n0", "n1", "n2", "n3", "n4"]
        assert server.received[0].query == {"session_id": SANDBOX_ID}
        assert [one.name for one in client.snapshots.list(limit=3)] == ["n0", "n1", "n2"]
        assert client.snapshots.list(limit=0) == []
        client.snapshots.delete(found[0])
        assert (server.received[-1].method, server.received[-1].path) == (
            "DELETE",
            f"/api/v1/snapshots/{found[0].snapshot_id}",
        )
        with pytest.raises(ValueError, match="empty"):
            client.snapshots.get("")


def test_a_snapshot_to_start_from(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: reply(**SESSION))
    options = {"snapshot": "s1", "on_timeout": "end", "auto_resume": False}
    sdk.Sandbox.create(server.url, token="t", **options).close()  # type: ignore[arg-type]
    assert json.loads(server.received[0].body) == {
        "snapshot_id": "s1",
        "on_timeout": "end",
        "auto_resume": False,
    }


def test_forks_share_the_connection_until_the_last_is_closed(sdk: Flavour, serve: Serve) -> None:
    server = serve(forking(*running(*FORKS)))
    with sdk.Sandbox.create(server.url, token="t") as origin:
        forks = origin.fork(3, name="try", metadata={"step": None})
    asked = next(request for request in server.received if request.path.endswith("/fork"))
    assert json.loads(asked.body) == {"count": 3, "name": "try", "metadata": {"step": None}}
    assert asked.headers["idempotency-key"]
    assert [fork.sandbox_id for fork in forks] == FORKS
    assert server.received[-1].path.endswith(SANDBOX_ID), "only the original has ended"
    forks[0].close()
    forks[0].close()
    assert forks[1].info().state == "running"
    forks[1].close()
    forks[2].close()
    with pytest.raises(RuntimeError, match="closed"):
        forks[2].info()


def test_forks_that_fail_leave_those_that_run(sdk: Flavour, serve: Serve) -> None:
    server = serve(forking(*running(FORKS[0]), FULL, *running(FORKS[2])))
    with (
        sdk.Client(server.url, token="t") as client,
        pytest.raises(ForkError, match="1 of 3 forks do not run: no node has room") as failed,
    ):
        sdk.Sandbox.create(client=client).fork(3)
    assert [fork.sandbox_id for fork in failed.value.sandboxes] == [FORKS[0], FORKS[2]]
    [error] = failed.value.errors
    assert isinstance(error, ExhaustedError)
    assert failed.value.code == "exhausted"


def test_errors(serve: Serve, sandbox_at: SandboxAt) -> None:
    error = {"error": {"code": "conflict", "message": "the image is damaged"}}
    server = serve(lambda _: Reply(409, json.dumps(error).encode()))
    for act in (Sandbox.pause, Sandbox.resume, Sandbox.fork, Sandbox.snapshot, Sandbox.history):
        with pytest.raises(ConflictError, match="damaged"):
            getattr(sandbox_at(server.url), act.__name__)()


def test_an_answer_without_an_id(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: reply(snapshots=[{}]))
    with pytest.raises(ProtocolError, match="snapshot_id"):
        sandbox_at(server.url).history()


def test_export_and_import(sdk: Flavour, serve: Serve) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "POST":
            return reply(**snapshot())
        return Reply(body=[b"one ", b"file"], headers={"Content-Type": "application/octet-stream"})

    server = serve(answer)
    with sdk.Client(server.url, token="t") as client:
        with client.snapshots.export("s1") as file:
            content = b"".join(file)
        assert content == b"one file"
        with client.snapshots.export("s1", with_template=True) as file:
            assert b"".join(file) == content
        assert client.snapshots.import_(io.BytesIO(content), name="again").name == "n1"
        client.snapshots.import_(content, idempotency_key="k")
    assert [(r.path, r.query) for r in server.received] == [
        ("/api/v1/snapshots/s1/export", {}),
        ("/api/v1/snapshots/s1/export", {"with_template": "true"}),
        ("/api/v1/snapshots/import", {"name": "again"}),
        ("/api/v1/snapshots/import", {}),
    ]
    sent, keyed = server.received[2:]
    assert sent.body == keyed.body == content
    assert "idempotency-key" not in sent.headers
    assert keyed.headers["idempotency-key"] == "k"


def test_what_a_stranger_signed_is_not_imported(sdk: Flavour, serve: Serve) -> None:
    error = {"error": {"code": "denied", "message": "this one does not trust it"}}
    server = serve(lambda _: Reply(403, json.dumps(error).encode()))
    with (
        sdk.Client(server.url, token="t") as client,
        pytest.raises(PermissionDeniedError, match="does not trust"),
    ):
        client.snapshots.import_(b"x")
