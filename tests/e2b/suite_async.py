"""Real calls of an unmodified E2B SDK for Python, asynchronous. Prints each case as it passes."""

import asyncio
import time

import e2b
from e2b import AsyncSandbox, CommandExitException, NotFoundException, SandboxQuery, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType

cases = []


def case(f):
    cases.append(f)
    return f


async def raises(kind, awaitable):
    try:
        await awaitable
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


async def until(f, seconds=120):
    end = time.monotonic() + seconds
    while not f():
        if time.monotonic() > end:
            raise AssertionError("it did not come")
        await asyncio.sleep(0.05)


@case
async def life(_):
    sb = await AsyncSandbox.create(timeout=90, metadata={"suite": "async"}, envs={"FOO": "bar"})
    assert await sb.is_running()
    listed = await AsyncSandbox.list(query=SandboxQuery(metadata={"suite": "async"})).next_items()
    assert [i.sandbox_id for i in listed] == [sb.sandbox_id]
    await sb.set_timeout(300)
    again = await AsyncSandbox.connect(sb.sandbox_id)
    assert (await again.commands.run("echo $FOO")).stdout == "bar\n"
    assert len(await sb.get_metrics()) >= 1  # who asks has it measured
    assert await sb.kill() is True
    assert await sb.is_running() is False
    assert await sb.kill() is False
    await raises(NotFoundException, AsyncSandbox.connect(sb.sandbox_id))


@case
async def pausing(_):
    sb = await AsyncSandbox.create(timeout=600, envs={"FOO": "bar"})
    await sb.files.write("kept", "on disk")
    c = await sb.commands.run("exec sleep 300", background=True)
    await c.disconnect()
    await (sb.pause() if hasattr(sb, "pause") else sb.beta_pause())
    assert not await sb.is_running()
    again = await AsyncSandbox.connect(sb.sandbox_id, timeout=600)
    assert await again.files.read("kept") == "on disk"
    assert (await again.commands.run("echo $FOO")).stdout == "bar\n"
    assert c.pid in [p.pid for p in await again.commands.list()], "memory was lost"
    assert await again.kill() is True


@case
async def copies(sb):
    if not hasattr(sb, "fork"):
        return
    await sb.files.write("shared", "once")
    for copy in await sb.fork(timeout=600, count=2):
        assert await copy.files.read("shared") == "once"
        await copy.kill()
    snapshot = await sb.create_snapshot()
    assert snapshot.snapshot_id in [s.snapshot_id for s in await AsyncSandbox.list_snapshots().next_items()]
    born = await AsyncSandbox.create(snapshot.snapshot_id, timeout=600)
    assert await born.files.read("shared") == "once"
    await born.kill()
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True


@case
async def network(_):
    sb = await AsyncSandbox.create(timeout=600, allow_internet_access=False)
    if hasattr(sb, "update_network"):
        await sb.update_network({"allow_out": ["1.1.1.1"], "deny_out": [e2b.ALL_TRAFFIC]})
        assert (await sb.get_info()).network["allow_out"] == ["1.1.1.1"]
        await raises(e2b.SandboxException, sb.update_network({"deny_out": ["example.com"]}))
    await sb.kill()


@case
async def git(sb):
    if not hasattr(sb, "git"):
        return
    await sb.git.init("repo", initial_branch="main")
    await sb.git.configure_user("A", "a@example.com")
    await sb.files.write("repo/f", "1")
    await sb.git.add("repo")
    await sb.git.commit("repo", "first")
    await sb.git.create_branch("repo", "side")
    assert (await sb.git.status("repo")).is_clean and (await sb.git.branches("repo")).current_branch == "side"


@case
async def many_at_once(_):
    made = await asyncio.gather(*(AsyncSandbox.create(timeout=600) for _ in range(4)))
    said = await asyncio.gather(*(s.commands.run(f"echo {i}") for i, s in enumerate(made)))
    assert [r.stdout for r in said] == ["0\n", "1\n", "2\n", "3\n"]
    assert all(await asyncio.gather(*(s.kill() for s in made)))


@case
async def commands(sb):
    done = await asyncio.gather(*(sb.commands.run(f"sleep 0.2; echo {i}") for i in range(20)))
    assert [r.stdout for r in done] == [f"{i}\n" for i in range(20)]
    failed = await raises(CommandExitException, sb.commands.run("echo o; exit 7"))
    assert failed.exit_code == 7 and failed.stdout == "o\n"
    await raises(TimeoutException, sb.commands.run("sleep 60", timeout=1))
    said = []
    c = await sb.commands.run("read x; echo got $x; exec sleep 300", background=True, stdin=True, on_stdout=said.append)
    await sb.commands.send_stdin(c.pid, "one\n")
    await until(lambda: "".join(said) == "got one\n")
    assert c.pid in [p.pid for p in await sb.commands.list()]
    other = await sb.commands.connect(c.pid)
    assert await c.kill() is True
    assert (await raises(CommandExitException, other.wait())).exit_code == -1


@case
async def terminal(sb):
    out = []
    pty = await sb.pty.create(PtySize(rows=24, cols=80), on_data=lambda b: out.append(bytes(b)))
    await sb.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    await sb.pty.send_stdin(pty.pid, b"echo now $(stty size); exit\n")
    await pty.wait()
    assert "now 30 100" in b"".join(out).decode()


@case
async def files(sb):
    await sb.files.write("a/b.txt", "hello")
    assert await sb.files.read("a/b.txt") == "hello"
    assert b"".join([p async for p in await sb.files.read("a/b.txt", format="stream")]) == b"hello"
    await asyncio.gather(*(sb.files.write(f"many/{i}", str(i) * 1000) for i in range(20)))
    assert len(await sb.files.list("many")) == 20
    assert await sb.files.exists("many/7") and not await sb.files.exists("many/20")
    assert await sb.files.make_dir("d") is True and await sb.files.make_dir("d") is False
    assert (await sb.files.rename("a/b.txt", "c.txt")).path == "/home/user/c.txt"
    await sb.files.remove("c.txt")
    await raises(NotFoundException, sb.files.read("c.txt"))


@case
async def watch(sb):
    await sb.files.make_dir("watched")
    seen = []
    w = await sb.files.watch_dir("watched", on_event=seen.append)
    await sb.files.write("watched/new", "x")
    await until(lambda: any(e.type == FilesystemEventType.WRITE and e.name == "new" for e in seen))
    await w.stop()
    await raises(e2b.InvalidArgumentException, sb.files.watch_dir("watched/new", on_event=seen.append))


async def main():
    sb = await AsyncSandbox.create(timeout=3600)
    try:
        for f in cases:
            began = time.monotonic()
            await f(sb)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f}s", flush=True)
    finally:
        await sb.kill()


asyncio.run(main())
