"""What the files' methods add to a request and its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from email import message_from_bytes
from typing import Any

import pytest

from cloud_sandbox import (
    ConflictError,
    FileChange,
    FileOperation,
    NotFoundError,
    Sandbox,
    _retry,
)
from cloud_sandbox._async import following as following_async
from cloud_sandbox._sync import following as following_sync

from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]
SandboxAt = Callable[[str], Sandbox]


def test_a_batch(serve: Serve, sandbox_at: SandboxAt) -> None:
    results = [
        {"status": "ok", "entry": {"path": "/a", "type": "file"}},
        {"status": "ok", "content": "ä", "truncated": True},
        {"status": "ok", "content_base64": "/w=="},
        {"status": "error", "error": {"code": "conflict", "message": "why"}},
        {"status": "skipped"},
    ]
    body = json.dumps({"results": results, "failed": 2}).encode()
    server = serve(lambda _: Reply(body=body))
    done = sandbox_at(server.url).files.batch(
        [
            FileOperation("write", "a", content=b"\xff", mode=0o600),
            FileOperation("write", "b", content="ä"),
            FileOperation("copy", source="a", destination="c", overwrite=True, user="root"),
        ],
        stop_on_error=True,
    )
    sent = json.loads(server.received[0].body)
    assert sent["stop_on_error"] is True
    assert sent["operations"] == [
        {"op": "write", "path": "a", "content_base64": "/w==", "mode": "0600"},
        {"op": "write", "path": "b", "content": "ä"},
        {"op": "copy", "source": "a", "destination": "c", "overwrite": True, "user": "root"},
    ]
    assert done.failed == 2
    assert [outcome.ok for outcome in done] == [True, True, True, False, False]
    assert done[0].entry is not None
    assert (done[1].text, done[1].truncated, done[2].content) == ("ä", True, b"\xff")
    assert type(done[3].error) is ConflictError


def test_a_form_of_files(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=b'{"entries": [{"path": "/a"}]}'))
    written = sandbox_at(server.url).files.write_many(
        {"plain": "text", 'd/ä "q" \\.bin': [b"\xff", "\r\n"], "empty": b""}, "d"
    )
    assert [entry.path for entry in written] == ["/a"]
    received = server.received[0]
    assert received.query["path"] == "d"
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    parts: Any = message_from_bytes(head + received.body).get_payload()
    raw = received.body
    assert [part.get_payload(decode=True) for part in parts] == [b"text", b"\xff\r\n", b""]
    assert 'filename="d/ä \\"q\\" \\\\.bin"'.encode() in raw


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\0b"])
def test_names_that_no_form_can_hold(sandbox_at: SandboxAt, name: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        sandbox_at("http://localhost:1").files.write_many({name: b""})


def event(name: str, cursor: str, **more: object) -> bytes:
    data = json.dumps({"cursor": cursor, "path": "/w/" + cursor, **more})
    return f"id: {cursor}\nevent: {name}\ndata: {data}\n\n".encode()


def failure(code: str) -> bytes:
    data = json.dumps({"error": {"code": code, "message": code}})
    return f"event: error\ndata: {data}\n\n".encode()


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_retry, "_BASE_SECONDS", 0.001)


@pytest.mark.usefixtures("_hasty")
def test_a_watch_goes_on_where_it_broke(serve: Serve, sandbox_at: SandboxAt) -> None:
    replies = iter(
        [
            Reply(body=[event("start", "0", reset=False), event("change", "1", type="created")]),
            Reply(503),  # the server is being restarted
            Reply(body=[event("start", "1"), event("change", "2", type="removed")], cut=True),
            Reply(body=[event("start", "2"), failure("unavailable")]),
            Reply(body=[event("start", "5", reset=True), event("reset", "6")]),
            Reply(body=[event("start", "6"), failure("not_found")]),
        ]
    )
    server = serve(lambda _: next(replies))
    found: list[FileChange] = []
    with sandbox_at(server.url).files.watch("w", recursive=True) as watch:
        found.extend(next(watch) for _ in range(4))
        with pytest.raises(NotFoundError):
            next(watch)
    assert [(change.type, change.path) for change in found] == [
        ("created", "/w/1"),
        ("removed", "/w/2"),
        ("reset", "/w/5"),
        ("reset", "/w/6"),
    ]
    since = [received.query.get("since") for received in server.received]
    assert since == [None, "1", "1", "2", "2", "6"]
    assert server.received[0].query["recursive"] == "true"
    assert watch.cursor == "6"


@pytest.mark.usefixtures("_hasty")
def test_a_watch_gives_up_on_a_server_that_stays_away(
    serve: Serve, sandbox_at: SandboxAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (following_async, following_sync):
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)

    def answer(received: Received) -> Reply:
        if "since" in received.query:
            return Reply(drop=True)
        return Reply(body=[event("start", "0")])

    with (
        sandbox_at(serve(answer).url).files.watch() as watch,
        pytest.raises(ConnectionError),
    ):
        next(watch)


def test_a_watch_of_nothing(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(404))
    with pytest.raises(NotFoundError):
        sandbox_at(server.url).files.watch("no")


def test_a_watch_that_is_left(serve: Serve, sandbox_at: SandboxAt) -> None:
    body = [event("start", "0"), *(event("change", str(n), type="created") for n in range(9))]
    server = serve(lambda _: Reply(body=body))
    with sandbox_at(server.url).files.watch() as watch:
        assert next(watch).path == "/w/0"
    assert list(watch) == []
    assert len(server.received) == 1
