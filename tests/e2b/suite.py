"""Real calls of an unmodified E2B SDK for Python, synchronous. Prints each case as it passes."""

import inspect
import os
import sys
import time
import urllib.request
from datetime import datetime, timedelta, timezone

import e2b
from e2b import CommandExitException, NotFoundException, Sandbox, SandboxQuery, SandboxState, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox.filesystem.filesystem import FileType
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType

cases = []


def case(f):
    cases.append(f)
    return f


def raises(kind, f, *args, **kwargs):
    try:
        f(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


def until(f, seconds=120):
    end = time.monotonic() + seconds
    while True:
        got = f()
        if got:
            return got
        if time.monotonic() > end:
            raise AssertionError("it did not come")
        time.sleep(0.05)


@case
def life(_):
    asked = datetime.now(timezone.utc)
    sb = Sandbox.create(timeout=190, metadata={"suite": "life", "odd &=%": "välue +/"}, envs={"FOO": "bar"})
    took = datetime.now(timezone.utc) - asked
    assert sb.is_running()
    info = sb.get_info()
    assert info.sandbox_id == sb.sandbox_id and info.metadata["odd &=%"] == "välue +/" and info.state == SandboxState.RUNNING
    assert timedelta(seconds=189) < info.end_at - info.started_at < timedelta(seconds=191) + took, (info, took)
    query = SandboxQuery(metadata={"odd &=%": "välue +/"})
    listed = Sandbox.list(query=query).next_items()
    assert sb.sandbox_id in [i.sandbox_id for i in listed], listed
    assert all(i.metadata.get("suite") == "life" for i in listed)
    sb.set_timeout(3000)
    assert (sb.get_info().end_at - info.end_at).total_seconds() > 2000
    again = Sandbox.connect(sb.sandbox_id, timeout=30)
    assert again.commands.run("echo $FOO").stdout == "bar\n"
    assert (sb.get_info().end_at - info.end_at).total_seconds() > 2000, "connect made it shorter"
    metrics = until(sb.get_metrics)
    assert metrics[0].mem_total > 0 and metrics[0].cpu_count >= 1 and metrics[0].disk_total > 0
    assert sb.kill() is True
    assert sb.is_running() is False
    assert sb.kill() is False
    raises(NotFoundException, Sandbox.connect, sb.sandbox_id)
    raises(e2b.SandboxException, Sandbox._cls_get_info if hasattr(Sandbox, "_cls_get_info") else Sandbox.get_info, sb.sandbox_id)
    raises(e2b.SandboxException, sb.commands.run, "true")


@case
def pages(_):
    made = [Sandbox.create(timeout=600, metadata={"suite": "pages"}) for _ in range(3)]
    seen = []
    page = Sandbox.list(query=SandboxQuery(metadata={"suite": "pages"}, state=[SandboxState.RUNNING]), limit=1)
    while page.has_next:
        items = page.next_items()
        assert len(items) <= 1
        seen += [i.sandbox_id for i in items]
    assert seen == [s.sandbox_id for s in reversed(made)], seen
    assert all(s.kill() for s in made)


@case
def ends_at_its_timeout(_):
    sb = Sandbox.create(timeout=60)
    sb.set_timeout(1)
    until(lambda: not sb.is_running())
    assert sb.kill() is False


@case
def pausing(_):
    sb = Sandbox.create(timeout=600, metadata={"suite": "pausing"}, envs={"FOO": "bar"})
    sb.files.write("kept", "on disk")
    c = sb.commands.run("exec sleep 300", background=True)
    c.disconnect()
    boot = sb.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
    pause = sb.pause if hasattr(sb, "pause") else sb.beta_pause
    pause()
    assert not sb.is_running()
    query = SandboxQuery(metadata={"suite": "pausing"}, state=[SandboxState.PAUSED])
    assert [i.sandbox_id for i in Sandbox.list(query=query).next_items()] == [sb.sandbox_id]
    asked = datetime.now(timezone.utc)
    again = Sandbox.connect(sb.sandbox_id, timeout=120)
    assert timedelta(seconds=119) < again.get_info().end_at - asked < timedelta(seconds=121) + (datetime.now(timezone.utc) - asked)
    assert again.sandbox_id == sb.sandbox_id and again.is_running()
    again.set_timeout(600)
    assert again.files.read("kept") == "on disk"
    assert again.commands.run("echo $FOO").stdout == "bar\n"
    assert c.pid in [p.pid for p in again.commands.list()], "memory was lost"
    assert again.commands.run("cat /proc/sys/kernel/random/boot_id").stdout == boot
    pause()
    assert sb.kill() is True and sb.kill() is False


@case
def copies(sb):
    if not hasattr(sb, "fork"):
        return
    sb.files.write("shared", "once")
    for copy in sb.fork(timeout=600, count=2):
        assert copy.files.read("shared") == "once" and copy.sandbox_id != sb.sandbox_id
        copy.files.write("shared", "mine")
        assert copy.kill() is True
    assert sb.files.read("shared") == "once"
    snapshot = sb.create_snapshot()
    assert snapshot.snapshot_id in [s.snapshot_id for s in Sandbox.list_snapshots().next_items()]
    born = Sandbox.create(snapshot.snapshot_id, timeout=600)
    assert born.files.read("shared") == "once"
    assert born.kill() is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False


@case
def named_snapshots(sb):
    if not hasattr(sb, "create_snapshot"):
        return
    sb.files.write("turn", "1")
    first = sb.create_snapshot(name="py-turns")
    full = first.snapshot_id
    assert first.names == [full] and full.endswith("/py-turns:default"), first
    before = sb.create_snapshot()
    sb.files.write("turn", "2")
    second = sb.create_snapshot(name="py-turns")
    assert second == first, second  # the name stands for the newest from now on
    named = lambda name: [s.snapshot_id for s in Sandbox.list_snapshots(name=name).next_items()]  # noqa: E731
    if "name" in inspect.signature(Sandbox.list_snapshots).parameters:
        assert named("py-turns") == named(full) == [full] and named(before.snapshot_id) == [before.snapshot_id] and named("none") == []
    for of, turn in {"py-turns": "2", full: "2", before.snapshot_id: "1"}.items():
        born = Sandbox.create(of, timeout=600)
        assert born.files.read("turn") == turn
        born.kill()
    if "mode" in inspect.signature(sb.create_snapshot).parameters:
        c = sb.commands.run("exec sleep 301", background=True)
        files = sb.create_snapshot(mode="filesystem")
        born = Sandbox.create(files.snapshot_id, timeout=600)
        assert born.files.read("turn") == "2" and "301" not in str([p.args for p in born.commands.list()])
        born.kill()
        c.kill()
        assert Sandbox.delete_snapshot(files.snapshot_id) is True
    tagged = sb.create_snapshot(name="py-turns:v2")
    assert tagged.names == [tagged.snapshot_id] and tagged.snapshot_id.endswith("/py-turns:v2"), tagged
    born = Sandbox.create("py-turns:v2", timeout=600)
    assert born.files.read("turn") == "2"
    info = born.get_info()
    assert info.name == "py-turns" and info.template_id != "base", info
    if hasattr(e2b, "Template") and hasattr(e2b.Template, "get_tags"):
        assert sorted(t.tag for t in e2b.Template.get_tags("py-turns")) == ["default", "v2"] and e2b.Template.exists("py-turns") is True
    copy = born.fork(timeout=600)[0]
    born.pause()
    born = Sandbox.connect(born.sandbox_id)
    assert born.get_info().template_id == copy.get_info().template_id == info.template_id
    copy.kill()
    born.kill()
    assert Sandbox.delete_snapshot("py-turns:v2") is True and Sandbox.delete_snapshot("py-turns:v2") is False
    assert Sandbox.delete_snapshot("py-turns") is True and Sandbox.delete_snapshot(full) is False
    assert Sandbox.delete_snapshot(before.snapshot_id) is True


@case
def reboots(_):
    if "on_resume" not in inspect.signature(Sandbox.connect).parameters:
        return
    sb = Sandbox.create(timeout=600)
    boot = sb.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
    sb.files.write("kept", "on disk")
    assert sb.pause(mode="filesystem") is True and sb.pause() is False
    again = Sandbox.connect(sb.sandbox_id, on_resume="reboot")
    assert again.files.read("kept") == "on disk" and again.commands.run("cat /proc/sys/kernel/random/boot_id").stdout != boot
    assert Sandbox.kill(sb.sandbox_id) is True


@case
def network(_):
    sb = Sandbox.create(timeout=600, allow_internet_access=False)
    refused = "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 443), 5)\""
    raises(CommandExitException, sb.commands.run, refused)
    if hasattr(sb, "update_network"):
        assert sb.get_info().allow_internet_access is False
        sb.update_network({"allow_out": ["example.com"], "deny_out": [e2b.ALL_TRAFFIC]})
        shown = sb.get_info().network
        assert shown["allow_out"] == ["example.com"] and shown["deny_out"] == ["0.0.0.0/0"], shown
        raises(CommandExitException, sb.commands.run, refused)
        raises(e2b.SandboxException, sb.update_network, {"deny_out": ["example.com"]})
    sb.kill()


@case
def templates(_):
    if hasattr(e2b, "Template") and hasattr(e2b.Template, "exists"):
        assert e2b.Template.exists("base") is True
        assert e2b.Template.exists("there-is-no-such-template") is False


@case
def bad_creates(_):
    raises(e2b.SandboxException, Sandbox.create, "there-is-no-such-template")
    raises(e2b.AuthenticationException, Sandbox.create, api_key="e2b_" + "0" * 40)
    raises(e2b.SandboxException, Sandbox.create, timeout=10**7)


@case
def commands(sb):
    done = sb.commands.run("echo out; echo err >&2; pwd; id -un; echo $HOME $USER")
    assert done.exit_code == 0 and done.stderr == "err\n", done
    assert done.stdout == "out\n/home/user\nuser\n/home/user user\n", done
    assert sb.commands.run("echo $A$E2B_SANDBOX$E2B_SANDBOX_ID", envs={"A": "x"}).stdout == f"xtrue{sb.sandbox_id}\n"
    assert sb.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sb.commands.run("id -un", user="root").stdout == "root\n"
    failed = raises(CommandExitException, sb.commands.run, "echo o; echo e >&2; exit 7")
    assert failed.exit_code == 7 and failed.stdout == "o\n" and failed.stderr == "e\n" and failed.error == "exit status 7"
    raises(e2b.InvalidArgumentException, sb.commands.run, "true", cwd="/no/such/dir")
    raises(e2b.AuthenticationException, sb.commands.run, "true", user="nobody-here")
    raises(TimeoutException, sb.commands.run, "sleep 60", timeout=1)
    said = []
    sb.commands.run("for i in 1 2 3; do echo $i; done", on_stdout=said.append)
    assert "".join(said) == "1\n2\n3\n"
    big = sb.commands.run("head -c 3000000 /dev/zero | tr '\\0' 'é' | head -c 2000000 | wc -c; seq 200000")
    assert big.stdout.endswith("199999\n200000\n") and len(big.stdout) > 1_200_000
    assert sb.commands.run("printf '€uro ünïcode\\n'").stdout == "€uro ünïcode\n"


@case
def background(sb):
    c = sb.commands.run("while read x; do echo got $x; [ $x = end ] && break; done; exit 3", background=True, stdin=True)
    assert c.pid > 0
    assert c.pid in [p.pid for p in sb.commands.list()]
    sb.commands.send_stdin(c.pid, "one\n")
    sb.commands.send_stdin(c.pid, "end\n")
    ended = raises(CommandExitException, c.wait)
    assert ended.stdout == "got one\ngot end\n" and ended.exit_code == 3
    c = sb.commands.run("echo begun; exec sleep 300", background=True)
    other = sb.commands.connect(c.pid)
    assert sb.commands.kill(c.pid) is True
    ended = raises(CommandExitException, other.wait)
    assert ended.exit_code == -1, ended
    assert sb.commands.kill(c.pid) is False
    assert c.pid not in [p.pid for p in sb.commands.list()]
    raises(e2b.SandboxException, sb.commands.connect, 4_000_000)
    c = sb.commands.run("exec sleep 300", background=True)
    c.disconnect()
    assert c.pid in [p.pid for p in sb.commands.list()], "it ended with its stream"
    assert c.kill() is True
    if hasattr(sb.commands, "close_stdin"):
        c = sb.commands.run("cat; echo over", background=True, stdin=True)
        sb.commands.send_stdin(c.pid, "x\n")
        sb.commands.close_stdin(c.pid)
        assert c.wait().stdout == "x\nover\n"


@case
def terminal(sb):
    pty = sb.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"})
    sb.pty.send_stdin(pty.pid, b"echo $ABC-$TERM; stty size\n")
    sb.pty.resize(pty.pid, PtySize(rows=30, cols=100))
    sb.pty.send_stdin(pty.pid, b"echo now $(stty size); exit\n")
    out = []
    pty.wait(on_pty=lambda b: out.append(bytes(b)))
    text = b"".join(out).decode()
    assert "123-xterm-256color" in text and "now 30 100" in text, text
    pty = sb.pty.create(PtySize(rows=24, cols=80))
    assert sb.pty.kill(pty.pid) is True
    until(lambda: sb.pty.kill(pty.pid) is False)


@case
def files(sb):
    written = sb.files.write("dir/deep/a.txt", "hellö")
    assert written.path == "/home/user/dir/deep/a.txt" and written.name == "a.txt"
    assert sb.files.read("dir/deep/a.txt") == "hellö"
    assert bytes(sb.files.read("/home/user/dir/deep/a.txt", format="bytes")) == "hellö".encode()
    assert b"".join(sb.files.read("dir/deep/a.txt", format="stream")) == "hellö".encode()
    sb.files.write("empty", b"")
    assert sb.files.read("empty") == "" and bytes(sb.files.read("empty", format="bytes")) == b""
    binary = bytes(range(256)) * 20_000
    sb.files.write("/tmp/binary", binary)
    assert bytes(sb.files.read("/tmp/binary", format="bytes")) == binary
    sb.files.write_files([{"path": "many/1", "data": "1"}, {"path": "many/2", "data": b"2"}])
    assert [e.name for e in sb.files.list("many")] == ["1", "2"]
    assert [e.path for e in sb.files.list("dir", depth=2)] == ["/home/user/dir/deep", "/home/user/dir/deep/a.txt"]
    info = sb.files.get_info("dir/deep/a.txt")
    assert info.type == FileType.FILE and info.size == 6 and info.owner == "user" and info.group == "user"
    assert info.permissions == "-rw-r--r--" and info.mode == 0o644, info
    assert sb.files.get_info("dir").type == FileType.DIR
    assert sb.files.exists("dir") and not sb.files.exists("nothing")
    moved = sb.files.rename("dir/deep/a.txt", "elsewhere/b.txt")
    assert moved.path == "/home/user/elsewhere/b.txt" and sb.files.exists("elsewhere/b.txt")
    assert not sb.files.exists("dir/deep/a.txt")
    sb.files.remove("elsewhere")
    assert not sb.files.exists("elsewhere")
    assert sb.files.make_dir("new/dir") is True and sb.files.make_dir("new/dir") is False
    raises(NotFoundException, sb.files.read, "nothing")
    raises(NotFoundException, sb.files.list, "nothing")
    raises(NotFoundException, sb.files.get_info, "nothing")
    raises(NotFoundException, sb.files.rename, "nothing", "x")
    raises(e2b.InvalidArgumentException, sb.files.read, "new/dir")
    raises(e2b.InvalidArgumentException, sb.files.list, "empty")
    sb.files.write("/root/r", "of root", user="root")
    assert sb.files.read("/root/r", user="root") == "of root"
    assert sb.files.get_info("/root/r", user="root").owner == "root"
    sb.commands.run("ln -s empty link")
    link = sb.files.get_info("link")
    assert link.symlink_target == "/home/user/empty" and link.permissions.startswith("L"), link


@case
def urls(sb):
    boundary = "b0undary"
    data = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="up"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\nby url\r\n--{boundary}--\r\n"
    ).encode()

    def ask(url, **kwargs):
        # Where the routing is by headers, a plain client of the URL sends them too.
        headers = {"E2b-Sandbox-Id": sb.sandbox_id, "E2b-Sandbox-Port": "49983", **kwargs.pop("headers", {})}
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers, **kwargs)).read()

    up = sb.upload_url("by-url", use_signature_expiration=60)
    ask(up, data=data, headers={"Content-Type": f"multipart/form-data; boundary={boundary}"})
    assert ask(sb.download_url("by-url", use_signature_expiration=60)) == b"by url"
    refused = raises(urllib.error.HTTPError, ask, sb.download_url("by-url").split("&signature")[0])
    assert refused.code == 401, refused
    late = raises(urllib.error.HTTPError, ask, sb.download_url("by-url", use_signature_expiration=-10))
    assert late.code == 401, late


@case
def watch(sb):
    sb.files.make_dir("watched/sub")
    w = sb.files.watch_dir("watched", recursive=True)
    sb.files.write("watched/sub/new", "x")
    sb.files.rename("watched/sub/new", "watched/sub/old")
    sb.files.remove("watched/sub/old")
    seen = set()

    def all_came():
        seen.update((e.type, e.name) for e in w.get_new_events())
        return {
            (FilesystemEventType.CREATE, "sub/new"),
            (FilesystemEventType.WRITE, "sub/new"),
            (FilesystemEventType.RENAME, "sub/new"),
            (FilesystemEventType.CREATE, "sub/old"),
            (FilesystemEventType.REMOVE, "sub/old"),
        } <= seen

    until(all_came)
    w.stop()
    raises(NotFoundException, sb.files.watch_dir, "nothing")
    raises(e2b.InvalidArgumentException, sb.files.watch_dir, "empty")


@case
def ports(sb):
    sb.files.write("www/page", "served")
    sb.commands.run("python3 -m http.server 8000 -b 127.0.0.1 -d www", background=True)  # on loopback alone
    host = sb.get_host(8000)
    assert host.startswith(f"8000-{sb.sandbox_id}."), host

    def page():
        req = urllib.request.Request(os.environ["E2B_API_URL"] + "/page", headers={"Host": host})
        try:
            return urllib.request.urlopen(req).read() == b"served"
        except urllib.error.HTTPError as e:
            assert e.code == 502, e
            return False

    until(page)


@case
def by_id(sb):
    """What the class does to a sandbox by its ID alone."""
    other = Sandbox.create(timeout=60, metadata={"suite": "by_id"})
    sid = other.sandbox_id
    asked = datetime.now(timezone.utc)
    Sandbox.set_timeout(sid, 600)
    info = Sandbox.get_info(sid) if not hasattr(Sandbox, "_cls_get_info") else Sandbox._cls_get_info(sid)
    assert info.sandbox_id == sid and timedelta(seconds=599) < info.end_at - asked and info.end_at <= datetime.now(timezone.utc) + timedelta(seconds=600)
    assert until(lambda: Sandbox.get_metrics(sid))[0].mem_used > 0
    raises(e2b.SandboxException, Sandbox.set_timeout, "i00000000000000000000", 5)
    if hasattr(Sandbox, "pause"):
        assert Sandbox.pause(sid) is True and Sandbox.pause(sid) is False
        raises(NotFoundException, Sandbox.pause, "i00000000000000000000")
    assert Sandbox.kill(sid) is True and Sandbox.kill(sid) is False


@case
def metrics_over_time(_):
    sb = Sandbox.create(timeout=600)
    for asked in range(1, 5):  # a machine that is busy may miss a time
        sb.commands.run("sleep 7")
        points = sb.get_metrics()
        if len(points) > asked:  # measured without anybody asking
            break
    assert len(points) > asked and points == sorted(points, key=lambda p: p.timestamp), points
    later = sb.get_metrics(start=points[-1].timestamp)
    assert later and all(p.timestamp >= points[-1].timestamp.replace(microsecond=0) for p in later)
    sb.kill()


@case
def lifecycle(_):
    if "lifecycle" not in inspect.signature(Sandbox.create).parameters:
        return
    sb = Sandbox.create(timeout=600, lifecycle={"on_timeout": "pause", "auto_resume": True})
    shown = sb.get_info().lifecycle
    assert (shown["on_timeout"], shown["auto_resume"]) == ("pause", True), shown
    sb.files.write("kept", "1")
    sb.set_timeout(1)
    until(lambda: Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items() and sb.get_info().state == SandboxState.PAUSED)
    asked = datetime.now(timezone.utc)
    assert sb.files.read("kept") == "1", "traffic did not wake it"
    woken = sb.get_info()
    assert woken.state == SandboxState.RUNNING and (woken.end_at - asked).total_seconds() > 298
    sb.kill()


@case
def streams_of_input(sb):
    if not hasattr(sb.commands, "stream_input"):
        return
    c = sb.commands.run("cat", background=True, stdin=True)
    sb.commands.stream_input(c.pid, (piece for piece in ["one ", b"two ", "three\n"]))
    sb.commands.close_stdin(c.pid)
    assert c.wait().stdout == "one two three\n"
    raises(NotFoundException, sb.commands.stream_input, 4_000_000, ["x"])
    pty = sb.pty.create(PtySize(rows=24, cols=80))
    out = []
    other = sb.pty.connect(pty.pid)
    sb.pty.stream_input(pty.pid, [b"echo to-$((40+2))\n", b"exit\n"])
    other.wait(on_pty=lambda b: out.append(bytes(b)))
    assert b"to-42" in b"".join(out)


@case
def files_further(sb):
    if "metadata" in inspect.signature(sb.files.write).parameters:
        made = sb.files.write("tagged", "x", metadata={"Author": "ann"})
        assert made.metadata == {"author": "ann"}, made
        assert sb.files.get_info("tagged").metadata == {"author": "ann"}
        assert [e.metadata for e in sb.files.list(".") if e.name == "tagged"] == [{"author": "ann"}]
        assert sb.files.rename("tagged", "tagged2").metadata == {"author": "ann"}
        sb.files.write("tagged2", "y")
        assert sb.files.get_info("tagged2").metadata is None
        raises(e2b.InvalidArgumentException, sb.files.write, "tagged2", "y", metadata={"a": "ü"})
    if "gzip" in inspect.signature(sb.files.write).parameters:
        text = "compressible " * 10_000
        sb.files.write("zipped", text, gzip=True)
        assert sb.files.read("zipped") == text and sb.files.read("zipped", gzip=True) == text
        sb.files.write("raw", text, use_octet_stream=True)
        sb.files.write("pieces", (p for p in [b"a", b"b"]))
        assert sb.files.read("pieces") == "ab" and sb.files.get_info("raw").size == len(text)
    names = ["sp ace", "ünïcode", "per%41cent", "plus+", "quote'\"", "a&b=c", "tab\there", "#hash?"]
    for name in names:
        sb.files.write(f"odd/{name}", name)
        assert sb.files.read(f"odd/{name}") == name, name
        assert sb.files.exists(f"odd/{name}")
    assert sorted(e.name for e in sb.files.list("odd")) == sorted(names)
    sb.files.remove("odd")
    raises(e2b.SandboxException, sb.files.list, "odd")
    sb.files.make_dir("~/tilde")
    assert sb.files.exists("/home/user/tilde") and sb.files.exists("tilde")
    if "include_entry" in inspect.signature(sb.files.watch_dir).parameters:
        sb.files.make_dir("entries")
        w = sb.files.watch_dir("entries", include_entry=True)
        sb.files.write("entries/new", "123")
        seen = []
        until(lambda: seen.extend(w.get_new_events()) or [e for e in seen if e.type == FilesystemEventType.WRITE and e.entry])
        assert any(e.entry and e.entry.path == "/home/user/entries/new" for e in seen), seen
        w.stop()


@case
def git_further(sb):
    if not hasattr(sb, "git"):
        return
    git = sb.git
    git.init("origin.git", bare=True, initial_branch="main")
    git.init("one", initial_branch="main")
    git.configure_user("A", "a@example.com")
    assert git.get_config("user.email") == "a@example.com"
    git.set_config("pull.rebase", "false", scope="local", path="one")
    assert git.get_config("pull.rebase", scope="local", path="one") == "false" and git.get_config("no.such") is None
    sb.files.write("one/f", "1")
    assert [f.name for f in git.status("one").file_status] == ["f"]
    git.add("one", files=["f"])
    git.commit("one", "first", author_name="B", author_email="b@example.com")
    git.remote_add("one", "origin", "/home/user/origin.git")
    assert git.remote_get("one", "origin") == "/home/user/origin.git" and git.remote_get("one", "none") is None
    git.push("one", remote="origin", branch="main")
    git.clone("/home/user/origin.git", path="two", branch="main")
    assert sb.files.read("two/f") == "1"
    sb.files.write("two/f", "2")
    git.restore("two", paths=["f"])
    assert sb.files.read("two/f") == "1"
    sb.files.write("two/f", "2")
    git.add("two")
    git.reset("two", mode="hard")
    assert git.status("two").is_clean
    sb.files.write("two/g", "3")
    git.add("two")
    git.commit("two", "second")
    git.push("two")
    git.pull("one", remote="origin", branch="main")
    assert sb.files.read("one/g") == "3"
    git.create_branch("one", "side")
    git.checkout_branch("one", "main")
    assert sorted(git.branches("one").branches) == ["main", "side"] and git.branches("one").current_branch == "main"
    git.delete_branch("one", "side")
    assert git.branches("one").branches == ["main"]
    raises(e2b.SandboxException, git.status, "nothing-here")


@case
def private_ports(_):
    if not hasattr(Sandbox, "traffic_access_token"):
        return
    network = {"allow_public_traffic": False, "mask_request_host": "inside.test:${PORT}"}
    sb = Sandbox.create(timeout=600, network=network)
    assert sb.traffic_access_token and Sandbox.connect(sb.sandbox_id).traffic_access_token == sb.traffic_access_token
    shown = sb.get_info().network
    assert shown["allow_public_traffic"] is False and shown["mask_request_host"] == network["mask_request_host"], shown
    sb.files.write("www/page", "private")
    sb.commands.run("python3 -m http.server 8000 -d www", background=True)

    def page(**headers):
        req = urllib.request.Request(os.environ["E2B_API_URL"] + "/page", headers={"Host": sb.get_host(8000), **headers})
        try:
            return urllib.request.urlopen(req).read()
        except urllib.error.HTTPError as e:
            return e.code

    until(lambda: page(**{"E2B-Traffic-Access-Token": sb.traffic_access_token}) == b"private")
    assert page() == 403 and page(**{"E2B-Traffic-Access-Token": "x"}) == 403
    sb.kill()
    open_one = Sandbox.create(timeout=60)
    assert open_one.traffic_access_token is None
    open_one.kill()


@case
def secrets(sb):
    if not hasattr(e2b, "Secret"):
        return
    made = e2b.Secret.create("Py_Key", "v1", metadata={"by": "py"})
    assert made.name == "py_key" and made.version == 1
    assert e2b.Secret.update("py_key", "v2").version == 2
    info = e2b.Secret.get_info(made.secret_id)
    assert info.metadata == {"by": "py"} and info.updated_at >= info.created_at
    names, pages = [], e2b.Secret.list(limit=1)
    while pages.has_next:
        names += [s.name for s in pages.next_items()]
    assert "py_key" in names
    assert e2b.Secret.exists("py_key")
    assert e2b.Secret.destroy("py_key")
    assert not e2b.Secret.destroy("py_key")
    assert not e2b.Secret.exists(made.secret_id)


@case
def git(sb):
    if not hasattr(sb, "git"):
        return
    g = sb.git
    g.init("repo", initial_branch="main")
    g.configure_user("A", "a@example.com", path="repo", scope="local")
    sb.files.write("repo/f", "1")
    g.add("repo")
    g.commit("repo", "first")
    assert g.status("repo").is_clean
    g.create_branch("repo", "side")
    assert g.branches("repo").current_branch == "side"
    g.checkout_branch("repo", "main")
    sb.files.write("repo/f", "2")
    assert not g.status("repo").is_clean
    g.restore("repo", ["f"])
    assert sb.files.read("repo/f") == "1"


@case
def search_paths(sb):
    """PATH is what the caller says, though commands run in login shells."""
    assert sb.commands.run("echo $PATH", envs={"PATH": "/opt/run:/usr/bin:/bin"}).stdout == "/opt/run:/usr/bin:/bin\n"
    with Sandbox.create(timeout=300, envs={"PATH": "/opt/create:/usr/bin:/bin"}) as other:
        assert other.commands.run("echo $PATH; bash -lc 'echo $PATH'").stdout == "/opt/create:/usr/bin:/bin\n" * 2
        assert other.commands.run("echo $PATH", user="root").stdout == "/opt/create:/usr/bin:/bin\n"


@case
def words_of_failures(sb):
    """What users of E2B's SDKs read of a mistake of theirs."""
    assert str(raises(e2b.AuthenticationException, sb.commands.run, "id", user="nobodyhere")) == "invalid username: 'nobodyhere'"
    told = str(raises(e2b.AuthenticationException, sb.files.read, "f", user="nobodyhere"))
    assert told == "error looking up user 'nobodyhere': user: unknown user nobodyhere", told
    for call in (sb.files.read, sb.files.list, sb.files.watch_dir):
        told = str(raises(NotFoundException, call, "not/there"))
        assert told == "path '/home/user/not/there' does not exist", told
    told = str(raises(e2b.InvalidArgumentException, sb.commands.run, "echo " + "x" * 200_000))
    assert told.startswith("argument list too long"), told


@case
def polled_changes(sb):
    """What was written before the question is in the answer."""
    sb.files.make_dir("polled")
    watched = sb.files.watch_dir("polled")
    for i in range(60):
        sb.files.write(f"polled/{i}", "")
        assert str(i) in [event.name for event in watched.get_new_events()], i
    watched.stop()


@case
def killed_meanwhile(_):
    """Whose sandbox ends while a command runs is told so."""
    sb = Sandbox.create(timeout=300)
    command = sb.commands.run("sleep 600", background=True)
    assert sb.kill() is True
    told = str(raises(e2b.SandboxException, command.wait))
    assert "ended before the stream completed" in told and "The sandbox was killed or reached" in told or "sandbox timeout" in told.lower(), told


@case
def first_metric(_):
    with Sandbox.create(timeout=300) as sb:
        if not hasattr(sb, "get_metrics"):
            return
        first = sb.get_metrics()[0]
        assert first.cpu_used_pct > 0 and first.mem_used > 0 and first.disk_total > 0, first


@case
def unknown_ids(_):
    """Whatever is no sandbox's ID is the ID of none."""
    for unknown in ("i00000000000000000000", "what", "UPPER", "a-b-c", "not_an_id", "x" * 300):
        assert Sandbox.kill(unknown) is False, unknown
        raises(NotFoundException, Sandbox.get_info, unknown)
        raises(NotFoundException, Sandbox.connect, unknown)


def main():
    named = sys.argv[1:]
    with Sandbox.create(timeout=3600) as sb:
        for f in cases:
            if named and f.__name__ not in named:
                continue
            began = time.monotonic()
            f(sb)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f}s", flush=True)


main()
