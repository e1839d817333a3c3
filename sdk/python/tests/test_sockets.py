"""Terminals against a server that misbehaves."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest
from wsproto import ConnectionType
from wsproto.connection import Connection
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    Pong,
    TextMessage,
)

from cloud_sandbox import (
    ConflictError,
    ConnectionFailedError,
    NotFoundError,
    ProtocolError,
    Sandbox,
    _retry,
)
from cloud_sandbox._async import following as following_async
from cloud_sandbox._sync import following as following_sync

SandboxAt = Callable[[str], Sandbox]

PROCESS = {"process_id": "p1", "state": "running", "pty": {"cols": 80, "rows": 24}}
ENDED = {"process_id": "p1", "state": "ended", "status": "error", "exit_code": 3}


def text(kind: str, offset: int = 0, **more: object) -> TextMessage:
    return TextMessage(json.dumps({"type": kind, "offset": offset, **more}))


@dataclass
class Script:
    """What the server does with its connections, one after the other."""

    says: Sequence[Sequence[Event | bytes]]  # bytes go out as they are
    paths: list[str] = field(default_factory=list)
    heard: list[Event] = field(default_factory=list)


@contextmanager
def serving(script: Script) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for events in script.says:
                connection, _ = listener.accept()
                # Clients may leave in the middle.
                with connection, suppress(ConnectionError):
                    connection.settimeout(10)
                    converse(connection, script, events)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join()


def converse(connection: socket.socket, script: Script, events: Sequence[Event | bytes]) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(65536)
    head = request.decode().split("\r\n")
    script.paths.append(head[0].split()[1])
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head)}
    if events and isinstance(events[0], bytes):
        connection.sendall(events[0])
        return
    digest = hashlib.sha1(
        headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    ).digest()
    accept = base64.b64encode(digest).decode()
    protocol = Connection(ConnectionType.SERVER)
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        + f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )
    closing = False
    for event in events:
        if isinstance(event, bytes):
            connection.sendall(event)
        else:
            connection.sendall(protocol.send(event))
            closing = closing or isinstance(event, CloseConnection)
            if isinstance(event, Ping):
                protocol.receive_data(connection.recv(65536))
                script.heard.extend(protocol.events())
    while closing and (data := connection.recv(65536)):  # until the client has gone
        protocol.receive_data(data)
        script.heard.extend(protocol.events())


END = [text("end", 9, process=ENDED), CloseConnection(code=1000)]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_retry, "_BASE_SECONDS", 0.001)


def test_reading_goes_on_where_it_broke(sandbox_at: SandboxAt) -> None:
    script = Script(
        [
            [json_look()],
            [text("start", 2, process=PROCESS), BytesMessage(b"ab")],  # then it breaks
            [
                text("start", 4, process=PROCESS),
                BytesMessage(b""),
                BytesMessage(b"c"),
                CloseConnection(code=1012, reason="the server restarts"),
            ],
            [
                text("start", 5, process=PROCESS),
                Ping(b"?"),
                text("dropped", 5, next_offset=7),
                BytesMessage(b"d", message_finished=False),
                BytesMessage(b"e"),
                *END,
            ],
        ]
    )
    with serving(script) as url:
        process = sandbox_at(url).processes.get("p1")
        with process.attach(2) as terminal:
            assert b"".join(terminal) == b"abcde"
            assert (terminal.offset, terminal.dropped) == (9, 2)
            assert terminal.info is not None
            assert (terminal.info.ended, terminal.info.exit_code) == (True, 3)
            assert list(terminal) == []
            with pytest.raises(ConnectionFailedError):
                terminal.write("late")
    query = "sandbox_id=i0123456789abcdefghij&from="
    assert [path.partition("?")[2] for path in script.paths[1:]] == [
        query + offset for offset in ("2", "4", "5")
    ]
    assert any(isinstance(event, Pong) for event in script.heard)


def test_the_output_of_a_process_that_has_ended(sandbox_at: SandboxAt) -> None:
    script = Script(
        [[json_look()], [text("start", 0, process=ENDED), BytesMessage(b"all of it"), *END]]
    )
    with serving(script) as url, sandbox_at(url).processes.get("p1").attach(0) as terminal:
        assert b"".join(terminal) == b"all of it"


def json_look() -> bytes:
    body = json.dumps(PROCESS).encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


def test_what_changed_nothing_is_raised(sandbox_at: SandboxAt) -> None:
    error = {"code": "conflict", "message": "the process has ended"}
    start = text("start", 0, process=PROCESS)
    script = Script([[json_look()], [start, text("error", error=error), *END]])
    with serving(script) as url:
        process = sandbox_at(url).processes.get("p1")
        with process.attach() as terminal:
            terminal.write(b"x")
            terminal.resize(100, 30)
            terminal.signal("INT")
            terminal.send_eof()
            with pytest.raises(ConflictError, match="has ended"):
                next(terminal)
            assert list(terminal) == []
    sent = [event.data for event in script.heard if isinstance(event, BytesMessage | TextMessage)]
    assert sent == [
        b"x",
        '{"type": "resize", "cols": 100, "rows": 30}',
        '{"type": "signal", "signal": "INT"}',
        '{"type": "eof"}',
    ]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", NotFoundError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ProtocolError),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Accept: AAAA\r\n\r\n",
            ProtocolError,
        ),
    ],
    ids=["absent", "no upgrade", "wrong accept"],
)
def test_handshakes_that_fail(sandbox_at: SandboxAt, answer: bytes, error: type[Exception]) -> None:
    with serving(Script([[json_look()], [answer]])) as url:
        process = sandbox_at(url).processes.get("p1")
        with pytest.raises(error):
            process.attach()


@pytest.mark.parametrize(
    "says",
    [b"\xff\xff\xff\xff", TextMessage("{"), TextMessage('{"process": 1}')],
    ids=["no frame", "no JSON", "wrong type"],
)
def test_messages_that_make_no_sense(sandbox_at: SandboxAt, says: Event | bytes) -> None:
    start = text("start", 0, process=PROCESS)
    with serving(Script([[json_look()], [start, says, CloseConnection(code=1000)]])) as url:
        process = sandbox_at(url).processes.get("p1")
        with process.attach() as terminal, pytest.raises(ProtocolError):
            next(terminal)


def test_a_server_that_stays_away(sandbox_at: SandboxAt, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (following_async, following_sync):
        monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    with serving(Script([[json_look()], [text("start", 0, process=PROCESS)]])) as url:
        process = sandbox_at(url).processes.get("p1")
        terminal = process.attach()
    with terminal, pytest.raises(ConnectionFailedError):  # nobody listens any more
        next(terminal)
