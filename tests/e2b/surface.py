"""What the other suites leave out of E2B's Python SDK: surface.py sync|async. Prints each case as it passes."""

import asyncio
import inspect
import io
import logging
import os
import sys
import time
import uuid
from datetime import datetime, timedelta, timezone

import e2b
from e2b import CommandExitException, NotFoundException, SandboxQuery, SandboxState, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize

SYNC = sys.argv[1] == "sync"
Sandbox = e2b.Sandbox if SYNC else e2b.AsyncSandbox
Template = e2b.Template if SYNC else e2b.AsyncTemplate
Secret = e2b.Secret if SYNC else e2b.AsyncSecret
ME = {"suite": f"surface-{uuid.uuid4()}"}


async def a(result):
    """The result of a call, of either SDK."""
    return await result if inspect.isawaitable(result) else result


async def raises(kind, f, *args, **kwargs):
    try:
        await a(f(*args, **kwargs))
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


async def until(f, seconds=120):
    end = time.monotonic() + seconds
    while True:
        got = await a(f())
        if got:
            return got
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.1)


async def all_of(page):
    found = []
    while page.has_next:
        found += await a(page.next_items())
    return found


cases = []


def case(f):
    cases.append(f)
    return f


@case
async def creating(_):
    """Options of create, and lists by them."""
    key = str(uuid.uuid4())
    began = datetime.now(timezone.utc)
    made = [await a(Sandbox.create("base:default", timeout=600, metadata=ME, idempotency_key=key, logger=logging.getLogger("e2b"))) for _ in range(2)]
    assert made[0].sandbox_id == made[1].sandbox_id, "a key made two"
    sb = made[0]
    other = await a(Sandbox.create(template="base", timeout=600, metadata=ME, secure=True, allow_internet_access=True, lifecycle={"on_timeout": {"action": "kill"}}))
    both = [sb.sandbox_id, other.sandbox_id]
    for order, want in {"asc": both, "desc": both[::-1], None: both[::-1]}.items():
        found = await all_of(Sandbox.list(query=SandboxQuery(metadata=ME), limit=1, order=order))
        assert [i.sandbox_id for i in found] == want, (order, found)
    page = Sandbox.list(query=SandboxQuery(metadata=ME), limit=1)
    await a(page.next_items())
    rest = await all_of(Sandbox.list(query=SandboxQuery(metadata=ME), limit=1, next_token=page.next_token))
    assert [i.sandbox_id for i in rest] == both[:1]
    names = inspect.signature(SandboxQuery).parameters
    for field, value in {"started_after": began - timedelta(seconds=5), "template": "base"}.items():
        if field in names:
            assert [i.sandbox_id for i in await all_of(Sandbox.list(query=SandboxQuery(metadata=ME, **{field: value})))] == both[::-1]
    for field, value in {"started_after": began + timedelta(hours=1), "template": "not-there"}.items():
        if field in names:
            assert await all_of(Sandbox.list(query=SandboxQuery(metadata=ME, **{field: value}))) == []
    await raises(e2b.SandboxException, lambda: all_of(Sandbox.list(next_token="what")))
    info = await a(other.get_info())
    assert info.allow_internet_access is True and info.lifecycle == {"on_timeout": "kill", "auto_resume": False}, info
    assert info.cpu_count >= 1 and info.memory_mb >= 128 and info.envd_version and info.template_id and info.name == "base", info
    await a(other.update_network({"allow_out": ["1.1.1.1"], "allow_internet_access": False}))
    info = await a(other.get_info())
    assert info.allow_internet_access is False and info.network["allow_out"] == ["1.1.1.1"], info
    connected = await a(Sandbox.connect(sandbox_id=other.sandbox_id, timeout=700))
    asked = datetime.now(timezone.utc)
    again = await a(connected.connect(timeout=900))
    assert (await a(again.get_info())).end_at - asked > timedelta(seconds=898)
    assert await a(again.is_running(request_timeout=60))
    for gone in (sb, other):
        assert await a(gone.kill(request_timeout=120))


@case
async def refused(_):
    """What contradicts itself or is not there: a clear error, never silence."""
    for options, word in [
        ({"lifecycle": {"on_timeout": "kill", "auto_resume": True}}, "auto"),
        ({"network": {"allow_out": ["example.com"]}}, "ALL_TRAFFIC"),
        ({"network": {"deny_out": ["example.com"]}}, "example.com"),
        ({"network": {"mask_request_host": "a b"}}, "askRequestHost"),
        ({"network": {"https_ports": [49983]}}, "49983"),
        ({"network": {"egress_proxy": {"address": "127.0.0.1:1080"}}}, "egressProxy"),
        ({"network": {"dns_servers": ["1.1.1.1"]}}, "dns"),
        ({"iam": {"tokens": {"aws": {"audience": "x", "token_type": "JWT-SVID"}}}}, "iam"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
    ]:
        e = await raises(Exception, Sandbox.create, **options)
        assert word.lower() in str(e).lower(), (options, e)
    for bad in ["", "UPPER CASE", "a" * 300, "no/such", "base:nothing"]:
        if bad:
            await raises(e2b.SandboxException, Sandbox.create, bad)


@case
async def commands(sb):
    seen = {"out": [], "err": []}
    done = await a(
        sb.commands.run(
            "echo $A; echo e >&2; id -un; pwd", envs={"A": "b"}, user="root", cwd="/tmp", timeout=0, request_timeout=120,
            on_stdout=seen["out"].append, on_stderr=seen["err"].append,
        )
    )  # fmt: skip
    assert "".join(seen["out"]) == done.stdout == "b\nroot\n/tmp\n" and "".join(seen["err"]) == done.stderr == "e\n"
    h = await a(sb.commands.run("cat; echo over", background=True, stdin=True, user="root", timeout=300))
    info = [p for p in await a(sb.commands.list(request_timeout=120)) if p.pid == h.pid][0]
    assert info.cmd == "/bin/bash" and info.args == ["-l", "-c", "cat; echo over"] and info.cwd is None and info.envs == {}, info
    if hasattr(h, "send_stdin"):
        await a(h.send_stdin("one "))
        await a(h.send_stdin(b"two\n"))
        await a(h.close_stdin())
    else:
        await a(sb.commands.send_stdin(h.pid, "one two\n"))
        await a(sb.commands.close_stdin(h.pid))
    assert (await a(h.wait())).stdout == "one two\nover\n"
    if "retain_output" in inspect.signature(sb.commands.run).parameters:
        done = await a(sb.commands.run("echo said", on_stdout=seen["out"].append, retain_output=False))
        assert done.stdout is None or done.stdout == "", done
        assert seen["out"][-1] == "said\n"
    h = await a(sb.commands.run("exec sleep 300", background=True))

    async def join_for_a_second():
        await a((await a(sb.commands.connect(h.pid, timeout=1))).wait())

    await raises(TimeoutException, join_for_a_second)
    assert h.pid in [p.pid for p in await a(sb.commands.list())], "the time of a reader ended the process"
    assert await a(h.kill()) is True and await a(h.kill()) is False
    await raises(NotFoundException, sb.commands.send_stdin, h.pid, "x")
    await raises(NotFoundException, sb.commands.close_stdin, h.pid)
    # A process that has ended can be joined for a while.
    h = await a(sb.commands.run("exit 5", background=True))
    assert (await raises(CommandExitException, h.wait)).exit_code == 5
    late = await a(sb.commands.connect(h.pid))
    assert (await raises(CommandExitException, late.wait)).exit_code == 5
    # Its time ends the leader alone.
    for seconds in (1, 5, 25):  # within which it has begun: a busy machine may take longer
        await raises(TimeoutException, sb.commands.run, "sleep 4242 & touch /tmp/begun; exec sleep 4243", timeout=seconds)
        if await a(sb.files.exists("/tmp/begun")):
            break

    async def leader_is_gone():
        return not (await a(sb.commands.run("pgrep -f 'sleep 424[3]' || true"))).stdout

    await until(leader_is_gone)
    assert (await a(sb.commands.run("pgrep -f 'sleep 424[2]'; pkill -f 'sleep 424[2]'"))).stdout.count("\n") == 1
    for bad in ["/does/not/exist", "relative-nothing"]:
        await raises(e2b.InvalidArgumentException, sb.commands.run, "true", cwd=bad)
    await a(sb.files.make_dir("rel"))
    for cwd, at in {"rel": "/home/user/rel", "~": "/home/user", "~/rel": "/home/user/rel"}.items():
        assert (await a(sb.commands.run("pwd", cwd=cwd))).stdout == at + "\n"
    for stdin in (False, None):
        assert (await a(sb.commands.run("readlink /proc/self/fd/0", stdin=stdin))).stdout == "/dev/null\n"
    signalled = await raises(CommandExitException, sb.commands.run, "kill -TERM $$")
    assert signalled.exit_code == -1 and "terminated" in signalled.error, signalled.error
    text = "".join(chr(0x1F600 + i % 64) for i in range(30_000))
    await a(sb.files.write("emoji", text))
    assert (await a(sb.commands.run("cat emoji"))).stdout == text, "a character was cut"


@case
async def terminals(sb):
    out = []
    options = {"user": "root", "cwd": "/tmp", "envs": {"TERM": "dumb", "MINE": "1"}, "timeout": 0}
    if SYNC:
        pty = sb.pty.create(PtySize(rows=24, cols=80), **options)
    else:
        pty = await sb.pty.create(PtySize(rows=24, cols=80), on_data=lambda b: None, **options)
    assert pty.pid in [p.pid for p in await a(sb.commands.list())]
    if SYNC:
        joined = sb.pty.connect(pty.pid, timeout=300)
    else:
        joined = await sb.pty.connect(pty.pid, on_data=lambda b: out.append(bytes(b)), timeout=300)
    await a(sb.pty.resize(pty.pid, PtySize(rows=11, cols=22)))
    await a(sb.pty.send_stdin(pty.pid, b"echo [$(id -un) $TERM $MINE $LANG $PWD $(tput lines) $(stty size)]; exit 3\n"))
    if SYNC:
        ended = await raises(CommandExitException, joined.wait, on_pty=lambda b: out.append(bytes(b)))
    else:
        ended = await raises(CommandExitException, joined.wait)
    text = b"".join(out).decode()
    assert "[root dumb 1 C.UTF-8 /tmp 11 11 22]" in text and ended.exit_code == 3, text
    await raises(NotFoundException, sb.pty.resize, pty.pid, PtySize(rows=1, cols=1))
    await raises(NotFoundException, sb.pty.send_stdin, pty.pid, b"x")
    assert await a(sb.pty.kill(pty.pid)) is False
    plain = await a(sb.commands.run("exec sleep 300", background=True))
    await raises(e2b.SandboxException, sb.pty.send_stdin, plain.pid, b"x")
    await a(plain.kill())


@case
async def files(sb):
    write, read = sb.files.write, sb.files.read
    await a(write("f/io", io.BytesIO(b"\x00\xff")))
    assert bytes(await a(read("f/io", format="bytes"))) == b"\x00\xff"
    await a(write("f/text-io", io.StringIO("täxt")))
    assert await a(read("f/text-io", request_timeout=120)) == "täxt"
    made = await a(write("/f-of-root", "r", user="root"))
    assert (made.path, made.name, made.type.value if made.type else None) == ("/f-of-root", "f-of-root", "file"), made
    assert (await a(write("/root/mine", "x"))).path == "/root/mine" and (await a(sb.files.get_info("/root/mine"))).owner == "user"
    made = await a(sb.files.write_files([{"path": "f/w1", "data": "1"}, {"path": "f/w2", "data": b"2"}, {"path": "f/w3", "data": io.BytesIO(b"3")}], user="user"))
    assert [m.path for m in made] == [f"/home/user/f/w{i}" for i in (1, 2, 3)]
    assert await a(sb.files.write_files([])) == []
    if "gzip" in inspect.signature(write).parameters:
        made = await a(sb.files.write_files([{"path": "f/z1", "data": "z" * 9000}, {"path": "f/z2", "data": "y"}], gzip=True))
        assert [await a(read(m.path, gzip=True)) for m in made] == ["z" * 9000, "y"]
        made = await a(sb.files.write_files([{"path": "f/m1", "data": "z"}], use_octet_stream=True, metadata={"Kind": "k"}))
        assert made[0].metadata == {"kind": "k"}, made
        stream = await a(read("f/z1", format="stream", gzip=True, stream_idle_timeout=120))
        got = b"".join(stream) if SYNC else b"".join([p async for p in stream])
        assert got == b"z" * 9000
    await a(write("f/again", "a long text"))
    await a(write("f/again", "short"))
    assert await a(read("f/again")) == "short"
    await raises(e2b.SandboxException, write, "f", "over a folder")
    await raises(e2b.SandboxException, write, "f/w1/below", "below a file")
    await a(sb.commands.run("mkdir -p t/a/b/c; touch t/1 t/a/2 t/a/b/3 t/a/b/c/4; ln -s a t/link; ln -s nowhere t/dangling; chmod 600 t/1; mkfifo t/pipe"))
    for depth, want in {1: ["1", "a", "dangling", "link"], 2: ["1", "a", "2", "b", "dangling", "link"]}.items():
        found = [x.name for x in await a(sb.files.list("t", depth=depth)) if x.name != "pipe"]
        assert found == want, (depth, found)
    assert len(await a(sb.files.list("t", depth=10, user="user"))) >= 8
    for bad in (0, -1):
        await raises(e2b.InvalidArgumentException, sb.files.list, "t", depth=bad)
    by_name = {x.name: x for x in await a(sb.files.list("t"))}
    one = by_name["1"]
    assert (one.permissions, one.mode, one.owner, one.group, one.size, one.path, one.symlink_target) == ("-rw-------", 0o600, "user", "user", 0, "/home/user/t/1", None)
    assert abs((datetime.now(timezone.utc) - one.modified_time).total_seconds()) < 600, one.modified_time
    link = by_name["link"]
    assert link.type.value == "dir" and link.symlink_target == "/home/user/t/a", link
    assert by_name["a"].permissions.startswith("d") and by_name["a"].mode == 0o755, by_name["a"]
    assert [x.path for x in await a(sb.files.list("t/link"))] == ["/home/user/t/link/2", "/home/user/t/link/b"]
    assert await a(sb.files.exists("t/dangling")) is True
    assert await a(sb.files.exists("/root/x", user="root")) is False
    moved = await a(sb.files.rename("t/a", "t/new/place", user="user"))
    assert moved.type.value == "dir" and moved.path == "/home/user/t/new/place"
    assert await a(sb.files.exists("t/new/place/b/c/4"))
    await a(write("t/over", "old"))
    await a(write("t/with", "new"))
    await a(sb.files.rename("t/with", "t/over"))
    assert await a(read("t/over")) == "new"
    await a(sb.files.remove("t"))
    await a(sb.files.remove("t"))
    assert await a(sb.files.make_dir("/tmp/x/y/z", user="root")) is True
    assert (await a(sb.files.get_info("/tmp/x/y"))).owner == "root"
    await raises(e2b.InvalidArgumentException, sb.files.make_dir, "f/w1")
    await raises(e2b.AuthenticationException, read, "x", user="nobody-here")
    big = os.urandom(1 << 20) * 12
    await a(write("big", big))
    assert bytes(await a(read("big", format="bytes"))) == big
    e = await raises(NotFoundException, read, "/nothing/there")
    assert "/nothing/there" in str(e), e


@case
async def urls(sb):
    """Signed URLs with a user and without an end, and of a path that the form names."""
    import httpx

    headers = {"E2b-Sandbox-Id": sb.sandbox_id, "E2b-Sandbox-Port": "49983"}

    def ask(method, url, **kwargs):
        return httpx.request(method, url, headers=headers, timeout=120, **kwargs)

    up = sb.upload_url("/root/signed", user="root")
    assert ask("POST", up, files={"file": ("whatever", b"of root")}).status_code == 200
    got = ask("GET", sb.download_url("/root/signed", user="root"))
    assert got.content == b"of root", got.text
    assert ask("GET", sb.download_url("/root/signed", user="root", use_signature_expiration=30)).status_code == 200
    assert ask("GET", sb.download_url("/root/signed", user="root").replace("username=root", "username=user")).status_code == 401
    assert ask("GET", sb.download_url("none/such")).status_code == 404
    many = [("file", ("several/a", b"1")), ("file", ("several/b", b"2"))]
    answer = ask("POST", sb.upload_url(""), files=many)
    assert answer.status_code == 200 and [x["path"] for x in answer.json()] == ["/home/user/several/a", "/home/user/several/b"], answer.text


@case
async def watching(sb):
    await a(sb.files.make_dir("w/deep"))
    seen, exits = [], []
    if SYNC:
        w = sb.files.watch_dir("w", recursive=True, user="user", request_timeout=120)
        events = w.get_new_events
    else:
        w = await sb.files.watch_dir("w", on_event=seen.append, on_exit=exits.append, recursive=True, user="user", timeout=0)
        events = list

    async def saw(kind, name):
        def there():
            seen.extend(events())
            return any(e.type.value == kind and e.name == name for e in seen)

        await until(there)

    await a(sb.files.write("w/f", "1"))
    await saw("create", "f")
    await saw("write", "f")
    await a(sb.commands.run("chmod 700 w/f; mkdir -p w/later; touch w/later/x"))
    await saw("chmod", "f")
    await saw("create", "later/x")
    await a(sb.commands.run("rm w/f; mv w/later w/gone"))
    await saw("remove", "f")
    await saw("rename", "later")
    await a(w.stop())
    if not SYNC:
        await until(lambda: exits)
    await raises(NotFoundException, sb.files.watch_dir, "nothing", *([] if SYNC else [print]))
    plain = sb.files.watch_dir("w") if SYNC else await sb.files.watch_dir("w", seen.append)
    seen.clear()
    await a(sb.files.write("w/deep/unseen", "1"))
    await a(sb.files.write("w/seen", "1"))
    events = plain.get_new_events if SYNC else list
    await saw("write", "seen")
    assert not [e for e in seen if "unseen" in e.name], seen
    await a(plain.stop())


@case
async def metrics(sb):
    began = datetime.now() - timedelta(seconds=5)
    got = await until(lambda: sb.get_metrics(start=began, end=datetime.now() + timedelta(seconds=5)))
    m = got[-1]
    assert m.cpu_count >= 1 and m.cpu_used_pct >= 0 and 0 < m.mem_used < m.mem_total and 0 <= m.disk_used < m.disk_total, m
    assert await a(sb.get_metrics(start=datetime.now() - timedelta(days=2), end=datetime.now() - timedelta(days=1))) == []
    await raises(e2b.SandboxException, sb.get_metrics, start=datetime.now(), end=datetime.now() - timedelta(hours=1))


@case
async def git(sb):
    if not hasattr(sb, "git"):
        return
    g = sb.git
    await a(g.init("/home/user/r", bare=False, initial_branch="main", cwd="/tmp", user="user", envs={"X": "1"}, timeout=30))
    await a(g.dangerously_authenticate("me", "secret-token"))
    assert "secret-token" in (await a(sb.commands.run("cat ~/.git-credentials"))).stdout
    await a(g.configure_user("A", "a@example.com", scope="local", path="r"))
    await a(g.commit("r", "empty", allow_empty=True))
    await a(sb.files.write("r/a b", "1"))
    await a(g.add("r", all=True))
    status = await a(g.status("r"))
    assert status.has_staged and status.staged_count == 1 and not status.has_untracked and status.current_branch == "main", status
    await a(g.restore("r", paths=["a b"], staged=True))
    status = await a(g.status("r"))
    assert status.has_untracked and status.untracked_count == 1 and [f.status for f in status.file_status] == ["untracked"], status
    await a(g.add("r", files=["a b"]))
    await a(g.commit("r", "second"))
    await a(g.reset("r", mode="soft", target="HEAD~1"))
    assert (await a(g.status("r"))).has_staged
    await a(g.reset("r", paths=["a b"]))
    assert not (await a(g.status("r"))).has_staged
    await a(g.remote_add("r", "origin", "https://a.test/x.git"))
    await raises(e2b.SandboxException, g.remote_add, "r", "origin", "https://b.test/x.git")
    await a(g.remote_add("r", "origin", "https://b.test/x.git", overwrite=True))
    assert await a(g.remote_get("r", "origin")) == "https://b.test/x.git"
    await raises(e2b.SandboxException, g.push, "r")
    await raises(e2b.SandboxException, g.pull, "r")
    await raises(Exception, g.clone, "https://127.0.0.1:1/none.git", path="c", depth=1, username="u", password="p", timeout=30)
    await a(g.create_branch("r", "topic"))
    await raises(e2b.SandboxException, g.delete_branch, "r", "topic")
    await a(g.commit("r", "on topic", allow_empty=True))
    await a(g.checkout_branch("r", "main"))
    await raises(e2b.SandboxException, g.delete_branch, "r", "topic")
    await a(g.delete_branch("r", "topic", force=True))


@case
async def hosts(sb):
    assert sb.get_host(3000).startswith(f"3000-{sb.sandbox_id}.") and sb.get_mcp_url() == f"https://{sb.get_host(50005)}/mcp"
    assert sb.sandbox_domain and sb.traffic_access_token is None
    await a(sb.commands.run("mkdir -p /etc/mcp-gateway && echo -n tok > /etc/mcp-gateway/.token", user="root"))
    assert await a(sb.get_mcp_token()) == "tok"
    if hasattr(e2b, "E2B"):
        client = e2b.E2B(api_key=os.environ["E2B_API_KEY"], api_url=os.environ["E2B_API_URL"], headers={"X-Extra": "1"})
        bound = client.Sandbox if SYNC else client.AsyncSandbox
        assert (await a(bound.get_info(sb.sandbox_id) if not hasattr(bound, "_cls_get_info") else bound._cls_get_info(sb.sandbox_id))).sandbox_id == sb.sandbox_id
    assert Secret.fill("My_Key") and Secret.iam_token(audience="a", token_type="JWT-SVID")


@case
async def pausing(_):
    sb = await a(Sandbox.create(timeout=600, metadata=ME))
    asked = datetime.now(timezone.utc)
    assert await a(sb.pause(strict=True)) is True and await a(sb.pause()) is False
    info = await a(sb.get_info())
    assert info.state == SandboxState.PAUSED and timedelta(seconds=-1) < info.end_at - asked and info.end_at <= datetime.now(timezone.utc) + timedelta(seconds=1), info
    await raises(Exception, sb.commands.run, "true")
    await raises(e2b.SandboxException, sb.set_timeout, 60)
    await raises(e2b.SandboxException, sb.update_network, {"deny_out": ["1.1.1.1"]})
    await raises(e2b.SandboxException, sb.fork)
    again = await a(sb.connect(on_resume="reboot"))
    assert again.sandbox_id == sb.sandbox_id and await a(again.is_running())
    boot = (await a(sb.commands.run("cat /proc/sys/kernel/random/boot_id; pgrep -c sleep || true"))).stdout
    await a(sb.files.write("kept", "1"))
    h = await a(sb.commands.run("exec sleep 300", background=True))
    assert await a(sb.pause(keep_memory=True)) is True
    rebooted = await a(Sandbox.connect(sb.sandbox_id, timeout=600, on_resume="reboot"))
    assert await a(rebooted.files.read("kept")) == "1"
    assert (await a(rebooted.commands.run("cat /proc/sys/kernel/random/boot_id; pgrep -c sleep || true"))).stdout != boot
    assert "300" not in str([p.args for p in await a(rebooted.commands.list())]), "memory came back"
    assert await a(rebooted.pause(keep_memory=False)) is True
    await a(sb.connect(timeout=600))
    assert await a(sb.files.read("kept")) == "1"
    await a(sb.kill())


@case
async def forks_that_fail(sb):
    await raises(NotFoundException, Sandbox.fork, "i00000000000000000000")
    await raises(Exception, sb.fork, count=0)
    await raises(e2b.SandboxException, sb.fork, count=101)
    await raises(NotFoundException, Sandbox.create_snapshot, "i00000000000000000000")
    page = sb.list_snapshots(limit=1)
    assert await all_of(page) == []
    one = await a(sb.create_snapshot())
    assert [s.snapshot_id for s in await all_of(sb.list_snapshots())] == [one.snapshot_id]
    assert await a(Sandbox.delete_snapshot(one.snapshot_id)) is True


async def main():
    named = sys.argv[2:]
    sb = await a(Sandbox.create(timeout=3600))
    try:
        for f in cases:
            if named and f.__name__ not in named:
                continue
            began = time.monotonic()
            await f(sb)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f}s", flush=True)
    finally:
        await a(sb.kill())


asyncio.run(main())
