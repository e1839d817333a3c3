"""The connection: retries, tokens, streams and what breaks."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable

import pytest

from cloud_sandbox import (
    AuthenticationError,
    Client,
    ConnectionFailedError,
    ExhaustedError,
    Sandbox,
    SandboxTimeoutError,
    UnavailableError,
    _wire,
)

from .conftest import SANDBOX_ID
from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]
SandboxAt = Callable[[str], Sandbox]

ENTRY = json.dumps({"name": "a", "path": "/a", "type": "file"}).encode()
SESSION = json.dumps({"sandbox_id": SANDBOX_ID, "state": "running"}).encode()
OK = json.dumps({"status": "ok"}).encode()


def in_turn(*replies: Reply) -> Answer:
    left = iter(replies)
    return lambda _: next(left)


def test_a_broken_read_is_repeated(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(drop=True), Reply(drop=True), Reply(body=ENTRY)))
    assert sandbox_at(server.url).stat("/a").path == "/a"
    assert len(server.received) == 3


def test_a_broken_execution_is_not_repeated(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(drop=True)))
    with pytest.raises(ConnectionFailedError):
        sandbox_at(server.url).run_code("x")
    assert len(server.received) == 1


def test_a_delete_whose_answer_got_lost(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(drop=True), Reply(404)))
    sandbox_at(server.url).remove("/a")
    assert len(server.received) == 2


def test_retries_end(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(503))
    with pytest.raises(UnavailableError):
        sandbox_at(server.url).info()
    assert len(server.received) == 4


def test_nobody_listens(sandbox_at: SandboxAt) -> None:
    with socket.socket() as taken:  # bound, so nobody else gets it; not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionFailedError, match=url) as caught:
            sandbox_at(url).info()
    assert isinstance(caught.value, ConnectionError)
    assert caught.value.status_code is None


def test_a_server_that_is_late_to_start(sandbox_at: SandboxAt) -> None:
    with Server(lambda _: Reply(body=SESSION)) as server:
        url = server.url
    late = threading.Event()

    def answer(_: Received) -> Reply:
        late.set()
        return Reply(body=OK)

    # The first try is refused; the server comes back on the same port meanwhile.
    sandbox = sandbox_at(url)
    original, started = sandbox._client._once, []

    def once(request: _wire.Request, *, read: bool) -> object:
        try:
            return original(request, read=read)
        except Exception:
            started.append(Server(answer, port=int(url.rsplit(":", 1)[1])).__enter__())
            raise

    sandbox._client._once = once  # type: ignore[assignment]
    try:
        assert sandbox.run_code("x").ok  # a POST, but nothing had been sent
    finally:
        for server in started:
            server.__exit__(None, None, None)
    assert len(started) == 1
    assert late.is_set()


def test_an_iterator_is_sent_in_pieces_and_never_twice(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(429, headers={"Retry-After": "0"})))
    pieces: list[str | bytes] = ["ü", b"b"]
    with pytest.raises(ExhaustedError) as caught:
        sandbox_at(server.url).write_file("/a", iter(pieces))
    assert caught.value.retry_after == 0
    assert server.received[0].headers["transfer-encoding"] == "chunked"
    assert server.received[0].body == "üb".encode()


@pytest.mark.parametrize(
    "data",
    [
        "ü",
        "ü".encode(),
        bytearray("ü".encode()),
        memoryview("ü".encode()),
        io.BytesIO("ü".encode()),
        io.StringIO("ü"),
        ["ü"],
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_can_be_written(serve: Serve, sandbox_at: SandboxAt, data: _wire.Data) -> None:
    server = serve(lambda _: Reply(body=ENTRY))
    sandbox_at(server.url).write_file("/a", data)
    assert server.received[0].body == "ü".encode()


@pytest.mark.parametrize("data", [1, None, {"a": 1}])
def test_what_cannot_be_written(sandbox_at: SandboxAt, data: object) -> None:
    with pytest.raises(TypeError):
        sandbox_at("http://localhost:1").write_file("/a", data)  # type: ignore[arg-type]


def test_reading_in_pieces(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=[b"one", b"\xff", b"two"]))
    sandbox = sandbox_at(server.url)
    with sandbox.read_file("/a", format="stream") as stream:
        assert b"".join(stream) == b"one\xfftwo"
    assert sandbox.read_file("/a", format="bytes") == b"one\xfftwo"
    with pytest.raises(UnicodeDecodeError):
        sandbox.read_file("/a")


def test_leaving_a_stream_early(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=[b"x" * 1000] * 10))
    sandbox = sandbox_at(server.url)
    with sandbox.read_file("/a", format="stream") as stream:
        assert next(iter(stream))
    stream.close()
    assert len(sandbox.read_file("/a", format="bytes")) == 10_000


def test_a_stream_that_breaks(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=[b"half"], cut=True))
    with (
        pytest.raises(ConnectionFailedError),
        sandbox_at(server.url).read_file("/a", format="stream") as stream,
    ):
        list(stream)


def test_a_format_that_does_not_exist(sandbox_at: SandboxAt) -> None:
    with pytest.raises(ValueError, match="format"):
        sandbox_at("http://localhost:1").read_file("/a", format="json")  # type: ignore[call-overload]


def test_a_server_that_says_nothing(
    serve: Serve, sandbox_at: SandboxAt, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def answer(_: Received) -> Reply:
        answered.wait(10)
        return Reply(drop=True)

    server = serve(answer)
    monkeypatch.setattr(_wire, "_READ_SECONDS", 0.05)
    try:
        with pytest.raises(SandboxTimeoutError) as caught:
            sandbox_at(server.url).run_code("x", timeout_seconds=0.01)
    finally:
        answered.set()
    assert isinstance(caught.value, TimeoutError)


def test_an_exception_in_a_handler(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=[b'event: stdout\ndata: {"text": "a"}\n\n'] * 2))
    with pytest.raises(ZeroDivisionError):
        sandbox_at(server.url).run_code("x", on_stdout=lambda _: 1 / 0)


def test_connections_are_used_again(serve: Serve, sandbox_at: SandboxAt) -> None:
    result = b"event: result\ndata: " + OK + b"\n\n"

    def answer(received: Received) -> Reply:
        stream = received.headers["accept"] == "text/event-stream"
        return Reply(body=[result] if stream else OK)

    server = serve(answer)
    sandbox = sandbox_at(server.url)
    for _ in range(3):
        assert sandbox.run_code("x").ok
        assert sandbox.run_code("x", on_stdout=print).ok
    assert server.connections == 1


def test_tokens_are_minted_once_and_renewed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("cloud_sandbox._client.time.monotonic", lambda: now)
    minted = 0

    def answer(received: Received) -> Reply:
        nonlocal minted
        if received.path != "/api/v1/auth/token":
            assert received.headers["authorization"] == f"Bearer t{minted}"
            return Reply(body=SESSION)
        minted += 1
        token = {"access_token": f"t{minted}", "token_type": "Bearer", "expires_in": 600}
        return Reply(body=json.dumps(token).encode())

    server = serve(answer)
    with Client(server.url, user_id="ann") as client:
        sandbox = Sandbox.create(client=client)
        now += 500
        sandbox.info()
        assert minted == 1
        now += 50  # 50 s before it expires
        sandbox.info()
        assert minted == 2


def test_a_mint_that_is_refused(serve: Serve) -> None:
    server = serve(lambda _: Reply(403))
    with pytest.raises(Exception, match="403"):
        Sandbox.create(server.url, user_id="ann")
    assert [received.path for received in server.received] == ["/api/v1/auth/token"]


def test_nobody_said_who_asks() -> None:
    with pytest.raises(AuthenticationError, match="CLOUD_SANDBOX_API_KEY"):
        Sandbox.create("http://localhost:1")


def test_a_prefix_in_the_address(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=SESSION))
    sandbox_at(server.url + "/prefix/").info()
    assert server.received[0].path == f"/prefix/api/v1/sessions/{SANDBOX_ID}"


def test_an_id_cannot_leave_its_path(serve: Serve) -> None:
    server = serve(lambda _: Reply(body=SESSION))
    Sandbox.connect("../../x?y", server.url, token="t").close()
    assert server.received[0].path == "/api/v1/sessions/..%2F..%2Fx%3Fy"


def test_redirects_are_not_followed(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(302, headers={"Location": "http://localhost:1/"}))
    with pytest.raises(Exception, match="302"):
        sandbox_at(server.url).info()


def test_threads_share_a_client(serve: Serve) -> None:
    server = serve(lambda _: Reply(body=OK))
    failed: list[BaseException] = []

    def work(sandbox: Sandbox) -> None:
        try:
            for _ in range(10):
                assert sandbox.run_code("x").ok
        except BaseException as err:  # noqa: BLE001 - the test's thread raises it
            failed.append(err)

    with Client(server.url, token="t") as client:
        sandbox = Sandbox(client, SANDBOX_ID, owns_client=False)
        threads = [threading.Thread(target=work, args=(sandbox,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(server.received) == 80


def test_nothing_prints_the_token() -> None:
    with Client("http://localhost:1", token="secret-token") as client:
        assert "secret-token" not in repr(client)
        assert "secret-token" not in repr(Sandbox(client, SANDBOX_ID, owns_client=False))
