"""The calls of the E2B sandbox of the OpenAI Agents SDK, against the server."""

from __future__ import annotations

import asyncio
import io
import urllib.request
from pathlib import Path

from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.sandbox import ExecTimeoutError, LocalSnapshotSpec, Manifest, WorkspaceReadNotFoundError
from agents.sandbox.entries import Dir, File
from agents.sandbox.session.sandbox_session import SandboxSession

CLIENT = E2BSandboxClient()
MANIFEST = Manifest(
    entries={"src": Dir(children={"hello.txt": File(content=b"hello\n")})},
    environment={"value": {"COLOUR": "blue"}},
)


async def output(session: SandboxSession, command: str) -> str:
    """Run a shell command that must succeed, and return what it wrote."""
    result = await session.exec(command)
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def commands(session: SandboxSession) -> None:
    """Run commands, in time and not, and in a terminal."""
    assert await session.running()
    assert (
        await output(session, "pwd; cat src/hello.txt; echo $COLOUR") == "/workspace\nhello\nblue\n"
    )
    result = await session.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    try:
        await session.exec("sleep 60", timeout=1)
    except ExecTimeoutError:
        pass
    else:
        raise AssertionError("sleep ended in time")
    assert await output(session, "echo 'it goes on'") == "it goes on\n"

    assert session.supports_pty()
    update = await session.pty_exec_start("python3 -q", tty=True, yield_time_s=1)
    answer = update.output
    assert update.process_id is not None
    for chars in ("6 * 7\n", *[""] * 20):
        update = await session.pty_write_stdin(
            session_id=update.process_id, chars=chars, yield_time_s=5
        )
        answer += update.output
        if b"\n42" in answer:
            break
    assert b"\n42" in answer, answer
    await session.pty_terminate_all()


async def files(session: SandboxSession) -> None:
    """Write, read, list, move and remove files."""
    data = bytes(range(256)) * 4096
    await session.mkdir(Path("data"), parents=True)
    await session.write(Path("data/bytes"), io.BytesIO(data))
    assert (await session.read(Path("data/bytes"))).read() == data
    assert await session.read_bounded(Path("data/bytes"), max_bytes=len(data)) == data
    assert [Path(entry.path).name for entry in await session.ls(Path("data"))] == ["bytes"]
    await session.mv(Path("data/bytes"), Path("data/moved"))
    await session.rm(Path("data"), recursive=True)
    try:
        await session.read(Path("data/moved"))
    except WorkspaceReadNotFoundError:
        pass
    else:
        raise AssertionError("a removed file was read")


async def ports(session: SandboxSession) -> None:
    """Reach a server inside by the address that the SDK gives."""
    await session.pty_exec_start("exec python3 -m http.server 8000 -d src", yield_time_s=0.25)
    endpoint = await session.resolve_exposed_port(8000)
    address = f"http://{endpoint.host}:{endpoint.port}/hello.txt"
    await output(
        session,
        "curl -s --retry 50 --retry-delay 1 --retry-connrefused -o /dev/null localhost:8000",
    )
    with urllib.request.urlopen(address, timeout=10) as answer:
        assert answer.read() == b"hello\n"


async def used() -> None:
    """Use a sandbox in all ways but saving."""
    options = E2BSandboxClientOptions(sandbox_type="e2b", exposed_ports=(8000,))
    session = await CLIENT.create(manifest=MANIFEST, options=options)
    async with session:
        await commands(session)
        await files(session)
        await ports(session)


async def archived(folder: Path) -> None:
    """Carry the workspace to another sandbox as an archive on this machine."""
    options = E2BSandboxClientOptions(sandbox_type="e2b")
    session = await CLIENT.create(
        snapshot=LocalSnapshotSpec(base_path=folder), manifest=MANIFEST, options=options
    )
    async with session:
        first = session.state.sandbox_id
        await output(session, "echo kept > kept.txt")
    state = CLIENT.deserialize_session_state(CLIENT.serialize_session_state(session.state))
    resumed = await CLIENT.resume(state)
    async with resumed:
        assert resumed.state.sandbox_id != first
        assert await output(resumed, "cat kept.txt src/hello.txt") == "kept\nhello\n"


async def paused() -> None:
    """Pause a sandbox with its processes, and resume it."""
    options = E2BSandboxClientOptions(sandbox_type="e2b", pause_on_exit=True)
    session = await CLIENT.create(manifest=MANIFEST, options=options)
    async with session:
        first = session.state.sandbox_id
        await output(session, "nohup sleep 1000 > /dev/null 2>&1 & echo $! > pid")
    resumed = await CLIENT.resume(session.state)
    async with resumed:
        assert resumed.state.sandbox_id == first
        await output(resumed, "kill -0 $(cat pid)")
        resumed.state.pause_on_exit = False


async def snapshots(folder: Path) -> None:
    """Keep the workspace as a snapshot on the server."""
    options = E2BSandboxClientOptions(sandbox_type="e2b", workspace_persistence="snapshot")
    session = await CLIENT.create(
        snapshot=LocalSnapshotSpec(base_path=folder), manifest=MANIFEST, options=options
    )
    async with session:
        await output(session, "echo kept > kept.txt; echo beside > /tmp/beside.txt")
    resumed = await CLIENT.resume(session.state)
    async with resumed:
        assert await output(resumed, "cat kept.txt /tmp/beside.txt") == "kept\nbeside\n"


async def main() -> None:
    """Make all calls."""
    await used()
    await archived(Path("archives").absolute())
    await paused()
    await snapshots(Path("snapshots").absolute())


asyncio.run(main())
