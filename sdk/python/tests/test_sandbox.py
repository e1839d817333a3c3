"""The Sandbox object's own rules."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from cloud_sandbox import ConflictError, InternalError, NotFoundError, Sandbox

from .conftest import SANDBOX_ID
from .flavours import Flavour
from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]
SandboxAt = Callable[[str], Sandbox]


def session(state: str = "running") -> Reply:
    return Reply(body=json.dumps({"sandbox_id": SANDBOX_ID, "state": state}).encode())


def entry(kind: str) -> Reply:
    return Reply(body=json.dumps({"name": "a", "path": "/a", "type": kind}).encode())


def deletes(server: Server) -> int:
    return sum(received.method == "DELETE" for received in server.received)


def test_with_ends_the_sandbox(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: session())
    with sdk.Sandbox.create(server.url, token="t") as sandbox:
        assert deletes(server) == 0
        assert sandbox.session_id == SANDBOX_ID
    assert deletes(server) == 1
    with pytest.raises(RuntimeError, match="closed"):
        sandbox.info()


def test_with_ends_the_sandbox_after_an_exception(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: session())
    with pytest.raises(ZeroDivisionError), sdk.Sandbox.create(server.url, token="t"):
        _ = 1 / 0
    assert deletes(server) == 1


def failing_to_end(received: Received) -> Reply:
    return Reply(500) if received.method == "DELETE" else session()


def test_a_failed_end_does_not_mask_the_exception(
    sdk: Flavour, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve(failing_to_end)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ZeroDivisionError),
        sdk.Sandbox.create(server.url, token="t"),
    ):
        _ = 1 / 0
    assert SANDBOX_ID in caplog.text


def test_a_failed_end_is_raised_when_all_else_went_well(sdk: Flavour, serve: Serve) -> None:
    server = serve(failing_to_end)
    with pytest.raises(InternalError), sdk.Sandbox.create(server.url, token="t"):
        pass


def test_with_a_sandbox_that_was_killed(sdk: Flavour, serve: Serve) -> None:
    alive = True

    def answer(received: Received) -> Reply:
        nonlocal alive
        if received.method != "DELETE":
            return session()
        alive, was = False, alive
        return session("ended") if was else Reply(404)

    server = serve(answer)
    with sdk.Sandbox.create(server.url, token="t") as sandbox:
        assert sandbox.kill()
        assert not sandbox.kill()


def test_close_leaves_it_running(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: session())
    sdk.Sandbox.connect(SANDBOX_ID, server.url, token="t").close()
    assert deletes(server) == 0


def test_a_shared_client_stays_open(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: session())
    with sdk.Client(server.url, token="t") as client:
        with sdk.Sandbox.create(client=client):
            pass
        with sdk.Sandbox.connect(SANDBOX_ID, client=client):
            pass
    assert server.connections == 1
    with pytest.raises(ValueError, match="not both"):
        sdk.Sandbox.create(server.url, client=client)


def test_exists(serve: Serve, sandbox_at: SandboxAt) -> None:
    state = "running"

    def answer(received: Received) -> Reply:
        if received.path.startswith("/api/v1/sessions"):
            return session(state)
        return entry("file") if received.query["path"] == "/a" else Reply(404)

    sandbox = sandbox_at(serve(answer).url)
    assert sandbox.files.exists("/a")
    assert not sandbox.files.exists("/b")
    state = "ended"
    with pytest.raises(NotFoundError):
        sandbox.files.exists("/b")


@pytest.mark.parametrize(
    ("kind", "exist_ok", "works"),
    [("directory", True, True), ("directory", False, False), ("file", True, False)],
)
def test_make_dir_that_is_there(
    serve: Serve, sandbox_at: SandboxAt, kind: str, exist_ok: bool, works: bool
) -> None:
    server = serve(lambda received: entry(kind) if received.method == "GET" else Reply(409))
    sandbox = sandbox_at(server.url)
    if works:
        assert sandbox.files.make_dir("/a", exist_ok=exist_ok).is_dir
        return
    with pytest.raises(ConflictError):
        sandbox.files.make_dir("/a", exist_ok=exist_ok)


def test_paths_may_be_path_objects(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: entry("file"))
    sandbox_at(server.url).files.stat(PurePosixPath("/a") / "b")
    assert server.received[0].query["path"] == "/a/b"


def test_a_list_that_was_cut(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=b'{"entries": [{"path": "/a"}], "truncated": true}'))
    files = sandbox_at(server.url).list_files()
    assert files.truncated
    assert len(files) == 1
    assert server.received[0].query["path"] == "/workspace"


def test_connect_to_one_that_has_ended_closes_its_client(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: session("ended"))
    with pytest.raises(NotFoundError, match="has ended"):
        sdk.Sandbox.connect(SANDBOX_ID, server.url, token="t")


@pytest.mark.parametrize("limit", [0, 1, 150, 250, None])
def test_list_turns_pages(sdk: Flavour, serve: Serve, limit: int | None) -> None:
    def answer(received: Received) -> Reply:
        start = int(received.query.get("cursor", "0"))
        size = int(received.query.get("limit", "100"))
        assert 1 <= size <= 100
        ids = [{"sandbox_id": f"i{n}"} for n in range(start, min(start + size, 210))]
        page = {"sessions": ids, "next_cursor": str(start + size) if start + size < 210 else ""}
        return Reply(body=json.dumps(page).encode())

    server = serve(answer)
    found = sdk.Sandbox.list(server.url, token="t", limit=limit)
    want = 210 if limit is None else min(limit, 210)
    assert [info.sandbox_id for info in found] == [f"i{n}" for n in range(want)]


def test_set_port(serve: Serve, sandbox_at: SandboxAt) -> None:
    body = {"port": 8000, "private": True, "tls": False, "url": "http://8000-i0.localhost/"}
    server = serve(lambda _: Reply(body=json.dumps(body).encode()))
    sandbox = sandbox_at(server.url)
    changed = sandbox.set_port(8000, private=True)
    assert changed == sandbox.port(8000)
    assert (changed.port, changed.private, changed.tls) == (8000, True, False)
    put, got = server.received[-2:]
    assert (put.method, got.method) == ("PUT", "GET")
    assert put.path == got.path
    assert put.path.endswith(f"/{SANDBOX_ID}/ports/8000")
    assert json.loads(put.body) == {"private": True}


def test_open_ports(serve: Serve, sandbox_at: SandboxAt) -> None:
    first = {"port": 8000, "address": "127.0.0.1", "loopback": True, "pid": 7, "process": "web"}
    body = {"ports": [first, {"port": 22, "address": "::", "agent": True}], "truncated": False}
    server = serve(lambda _: Reply(body=json.dumps(body).encode()))
    ports = sandbox_at(server.url).open_ports(agent=True)
    assert [(p.port, p.process, p.loopback, p.agent) for p in ports] == [
        (8000, "web", True, False),
        (22, "", False, True),
    ]
    assert server.received[-1].path.endswith(f"/{SANDBOX_ID}/ports")
    assert server.received[-1].query == {"all": "true"}
