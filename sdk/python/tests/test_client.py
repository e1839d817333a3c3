"""The connection: retries, tokens, streams and what breaks."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from cloud_sandbox import (
    AsyncClient,
    AsyncSandbox,
    AuthenticationError,
    Client,
    ConflictError,
    ConnectionFailedError,
    ExhaustedError,
    Sandbox,
    SandboxTimeoutError,
    UnavailableError,
)
from cloud_sandbox._api import executions
from cloud_sandbox._api.call import Call, Data

from .conftest import SANDBOX_ID
from .flavours import Flavour
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
    assert sandbox_at(server.url).files.stat("/a").path == "/a"
    assert len(server.received) == 3


def test_a_broken_execution_is_found_again(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(drop=True), Reply(body=OK)))
    assert sandbox_at(server.url).run_code("x").ok
    first, second = server.received
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert "last-event-id" not in first.headers
    assert second.headers["last-event-id"] == "0.0.0"


def test_an_exception_in_a_handler_ends_the_execution(serve: Serve, sandbox_at: SandboxAt) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "DELETE":
            return Reply(body=b"{}")
        return Reply(body=[b'event: stdout\ndata: {"text": "a"}\n\n'] * 2)

    server = serve(answer)
    with pytest.raises(ZeroDivisionError):
        sandbox_at(server.url).run_code("x", on_stdout=lambda _: 1 / 0)
    first, second = server.received
    assert (second.method, second.path) == ("DELETE", "/api/v1/execute")
    assert second.headers["idempotency-key"] == first.headers["idempotency-key"]


def test_bytes_of_an_execution(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(
        lambda _: Reply(
            body=b'{"status": "ok", "stdout": "a\\ufffd", "stdout_base64": "Yf8=", "stderr": "e"}'
        )
    )
    execution = sandbox_at(server.url).run_code("x", stdin=b"\xff")
    assert (execution.stdout_bytes, execution.stderr_bytes) == (b"a\xff", b"e")
    assert json.loads(server.received[0].body)["stdin_base64"] == "/w=="


def test_a_broken_creation_is_repeated_with_its_key(sdk: Flavour, serve: Serve) -> None:
    under_way = Reply(409, headers={"Retry-After": "0"})
    busy = Reply(429, headers={"Retry-After": "0"})
    replies = [busy, Reply(drop=True), *[under_way] * 5, Reply(body=SESSION), Reply(body=SESSION)]
    server = serve(in_turn(*replies))
    with sdk.Client(server.url, token="t") as client:
        assert sdk.Sandbox.create(client=client).sandbox_id == SANDBOX_ID
        keys = {received.headers["idempotency-key"] for received in server.received}
        assert len(server.received) == 8
        assert len(keys) == 1
        sdk.Sandbox.create(client=client, idempotency_key="mine")
    assert server.received[-1].headers["idempotency-key"] == "mine"
    assert "mine" not in keys


def test_a_key_that_was_used_for_something_else(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: Reply(409))
    with pytest.raises(ConflictError):
        sdk.Sandbox.create(server.url, token="t", idempotency_key="used")
    assert len(server.received) == 1


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n", "k" * 256])
def test_keys_that_no_header_holds(sdk: Flavour, key: str) -> None:
    with pytest.raises(ValueError, match="idempotency_key"):
        sdk.Sandbox.create("http://localhost:1", token="t", idempotency_key=key)


def test_a_delete_whose_answer_got_lost(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(in_turn(Reply(drop=True), Reply(404)))
    sandbox_at(server.url).files.remove("/a")
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


def test_a_server_that_is_late_to_start() -> None:
    with Server(lambda _: Reply(body=SESSION)) as server:
        url = server.url
    late = threading.Event()

    def answer(_: Received) -> Reply:
        late.set()
        return Reply(body=OK)

    # The first try is refused; the server comes back on the same port meanwhile.
    client = Client(url, token="t")
    original, started = client._once, []

    def once(call: Call[object], *, read: bool) -> object:
        try:
            return original(call, read=read)
        except Exception:
            started.append(Server(answer, port=int(url.rsplit(":", 1)[1])).__enter__())
            raise

    client._once = once  # type: ignore[assignment]
    try:
        with client:
            sandbox = Sandbox(client, SANDBOX_ID, owns_client=False)
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


def test_a_file_is_sent_again_from_where_it_was(serve: Serve, sandbox_at: SandboxAt) -> None:
    busy = Reply(429, headers={"Retry-After": "0"})
    server = serve(in_turn(busy, Reply(502), Reply(drop=True), Reply(body=ENTRY)))
    file = io.BytesIO(b"skipped, kept")
    file.seek(9)
    sandbox_at(server.url).write_file("/a", file)
    assert [received.body for received in server.received] == [b"kept"] * 4


def test_a_busy_server_is_asked_again_as_it_says(
    sdk: Flavour, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def noted(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("cloud_sandbox._sync._io.sleep", waits.append)
    monkeypatch.setattr("cloud_sandbox._async._io.sleep", noted)
    busy = Reply(503, headers={"Retry-After": "10"})
    server = serve(in_turn(*[busy] * 5, Reply(body=SESSION)))
    with sdk.Client(server.url, token="t") as client:
        assert sdk.Sandbox.create(client=client).sandbox_id == SANDBOX_ID
        assert len(server.received) == 6  # more often than what broke is tried again
        assert all(10.0 <= wait <= 11.0 for wait in waits)
        assert len(waits) == 5
    server = serve(lambda _: busy)
    with sdk.Client(server.url, token="t") as client, pytest.raises(UnavailableError):
        sdk.Sandbox.create(client=client)
    assert len(server.received) <= 13  # two minutes in all


def test_retries_can_be_turned_off(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: Reply(503))
    with (
        sdk.Client(server.url, token="t", max_retries=0) as client,
        pytest.raises(UnavailableError),
    ):
        client.stats()
    assert len(server.received) == 1
    with pytest.raises(ValueError, match="max_retries"):
        sdk.Client(server.url, token="t", max_retries=-1)


@pytest.mark.parametrize(
    "data",
    [
        lambda: "ü",
        lambda: "ü".encode(),
        lambda: bytearray("ü".encode()),
        lambda: memoryview("ü".encode()),
        lambda: io.BytesIO("ü".encode()),
        lambda: io.StringIO("ü"),
        lambda: ["ü"],
    ],
    ids=["str", "bytes", "bytearray", "memoryview", "BytesIO", "StringIO", "list"],
)
def test_what_can_be_written(serve: Serve, sandbox_at: SandboxAt, data: Callable[[], Data]) -> None:
    server = serve(lambda _: Reply(body=ENTRY))
    sandbox_at(server.url).write_file("/a", data())
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


def test_a_stream_can_be_written(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda got: Reply(body=ENTRY if got.method == "PUT" else [b"one", b"two"]))
    sandbox = sandbox_at(server.url)
    with sandbox.read_file("/a", format="stream") as stream:
        sandbox.write_file("/b", stream)
    assert server.received[-1].body == b"onetwo"


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
    monkeypatch.setattr(executions, "READ_SECONDS", 0.05)
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


def test_tokens_are_minted_once_and_renewed(
    sdk: Flavour, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
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
    with sdk.Client(server.url, user_id="ann") as client:
        sandbox = sdk.Sandbox.create(client=client)
        now += 500
        sandbox.info()
        assert minted == 1
        now += 50  # 50 s before it expires
        sandbox.info()
        assert minted == 2


def test_a_mint_that_is_refused(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: Reply(403))
    with pytest.raises(Exception, match="403"):
        sdk.Sandbox.create(server.url, user_id="ann")
    assert [received.path for received in server.received] == ["/api/v1/auth/token"]


def test_nobody_said_who_asks(sdk: Flavour) -> None:
    with pytest.raises(AuthenticationError, match="CLOUD_SANDBOX_API_KEY"):
        sdk.Sandbox.create("http://box.example:1")


def test_a_prefix_in_the_address(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(body=SESSION))
    sandbox_at(server.url + "/prefix/").info()
    assert server.received[0].path == f"/prefix/api/v1/sessions/{SANDBOX_ID}"


def test_an_id_cannot_leave_its_path(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: Reply(body=SESSION))
    sdk.Sandbox.connect("../../x?y", server.url, token="t").close()
    assert server.received[0].path == "/api/v1/sessions/..%2F..%2Fx%3Fy"


def test_redirects_are_not_followed(serve: Serve, sandbox_at: SandboxAt) -> None:
    server = serve(lambda _: Reply(302, headers={"Location": "http://localhost:1/"}))
    with pytest.raises(Exception, match="302"):
        sandbox_at(server.url).info()


def test_threads_share_a_client(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: Reply(body=OK))
    failed: list[BaseException] = []

    def work(sandbox: Sandbox) -> None:
        try:
            for _ in range(10):
                assert sandbox.run_code("x").ok
        except BaseException as err:  # noqa: BLE001 - the test's thread raises it
            failed.append(err)

    with sdk.Client(server.url, token="t") as client:
        sandbox = sdk.Sandbox(client, SANDBOX_ID, owns_client=False)
        threads = [threading.Thread(target=work, args=(sandbox,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(server.received) == 80


def test_nothing_prints_the_token(sdk: Flavour) -> None:
    with sdk.Client("http://localhost:1", token="secret-token") as client:
        assert "secret-token" not in repr(client)
        assert "secret-token" not in repr(sdk.Sandbox(client, SANDBOX_ID, owns_client=False))


# What only one flavour can do.


def test_asynchronous_handlers_and_pieces(serve: Serve) -> None:
    output = b'event: stdout\ndata: {"text": "a"}\n\n'
    result = b"event: result\ndata: " + OK + b"\n\n"

    def answer(received: Received) -> Reply:
        return Reply(body=ENTRY if received.method == "PUT" else [output, output, result])

    server = serve(answer)
    heard: list[str] = []

    async def on_stdout(text: str) -> None:
        await anyio.sleep(0)
        heard.append(text)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"one "
        yield b"two"

    async def main() -> None:
        async with AsyncClient(server.url, token="t") as client:
            sandbox = AsyncSandbox(client, SANDBOX_ID, owns_client=False)
            await sandbox.run_code("x", on_stdout=on_stdout)
            await sandbox.write_file("/a", pieces())

    anyio.run(main)
    assert heard == ["a", "a"]
    assert server.received[-1].body == b"one two"


def test_a_cancelled_task_ends_its_sandbox(serve: Serve) -> None:
    server = serve(lambda _: Reply(body=SESSION))

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with await AsyncSandbox.create(server.url, token="t"):
                scope.cancel()
                await anyio.sleep(60)

    anyio.run(main)
    assert [received.method for received in server.received] == ["POST", "PATCH", "DELETE"]


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ({}, [b'{"on_timeout":"end"}']),
        ({"on_timeout": "pause"}, []),
        ({"name": "shared", "if_exists": "return"}, []),
    ],
)
def test_a_block_has_its_sandbox_end_by_itself(
    serve: Serve, options: dict[str, str], changes: list[bytes]
) -> None:
    server = serve(lambda _: Reply(body=SESSION))
    with Sandbox.create(server.url, token="t", **options):  # type: ignore[arg-type]
        pass
    found = [r.body.replace(b" ", b"") for r in server.received if r.method == "PATCH"]
    assert found == changes


def test_asynchronous_pieces_need_the_asynchronous_flavour(serve: Serve) -> None:
    server = serve(lambda _: Reply(body=ENTRY))

    async def pieces() -> AsyncIterator[bytes]:
        yield b""

    with Client(server.url, token="t") as client, pytest.raises(TypeError, match="AsyncSandbox"):
        Sandbox(client, SANDBOX_ID, owns_client=False).write_file("/a", pieces())  # type: ignore[arg-type]
