"""Everything against a real server, whose address is CLOUD_SANDBOX_URL.

Without CLOUD_SANDBOX_API_KEY the server must be in dev mode.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import threading
import time
import uuid
import zipfile
from pathlib import Path

import httpx
import pytest

from cloud_sandbox import (
    ArchiveFormat,
    AuthenticationError,
    Client,
    CloudSandboxError,
    ConflictError,
    FileOperation,
    GitCredentials,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    Resources,
    Result,
    Sandbox,
    UnsupportedError,
)
from cloud_sandbox._api.call import Data

from .flavours import Flavour

pytestmark = pytest.mark.integration

SNIPPET = """
from cloud_sandbox import Sandbox

with Sandbox.create(base_url="http://localhost:8080", user_id="test") as sandbox:
    result = sandbox.run_code("print('Hello, Cloud Sandbox!')")
    print(result.stdout)
    result = sandbox.run_command("ls -la /workspace")
    sandbox.write_file("/workspace/test.py", "x = 42")
    files = sandbox.list_files("/workspace")
"""


def test_the_snippet_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    code = SNIPPET.replace("http://localhost:8080", os.environ["CLOUD_SANDBOX_URL"])
    names: dict[str, object] = {}
    exec(code, names)
    assert capsys.readouterr().out == "Hello, Cloud Sandbox!\n\n"
    assert [file.name for file in names["files"]] == ["test.py"]  # type: ignore[attr-defined]


def test_the_snippet_is_the_readme_s() -> None:
    assert SNIPPET.strip() in (Path(__file__).parents[1] / "README.md").read_text()


# Running.


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import sys; print('out'); print('err', file=sys.stderr)"),
        ("javascript", "console.log('out'); console.error('err')"),
        ("bash", "echo out; echo err >&2"),
    ],
    ids=["python", "javascript", "bash"],
)
def test_languages(sandbox: Sandbox, language: str, code: str) -> None:
    execution = sandbox.run_code(code, language=language)
    assert execution.ok, execution
    assert (execution.stdout, execution.stderr, execution.exit_code) == ("out\n", "err\n", 0)
    assert execution.error is None
    assert execution.results == ()
    assert not execution.truncated
    assert 0 < execution.duration_ms < 60_000


def test_an_unknown_language(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequestError, match="python"):
        sandbox.run_code("x", language="cobol")


def test_code_that_fails(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("1/0")
    assert (execution.status, execution.exit_code) == ("error", 1)
    assert "ZeroDivisionError" in execution.stderr
    assert execution.error is not None
    assert sandbox.run_command("exit 7").exit_code == 7
    assert sandbox.run_command("kill -9 $$").exit_code == 137


def test_code_that_runs_too_long(sandbox: Sandbox) -> None:
    started = time.monotonic()
    execution = sandbox.run_code("print('begun')\nwhile True: pass", timeout_seconds=1)
    assert time.monotonic() - started < 10
    assert (execution.status, execution.stdout) == ("timeout", "begun\n")
    assert sandbox.run_command("true").ok


def test_environment_folder_and_input(sandbox: Sandbox) -> None:
    execution = sandbox.run_command(
        "echo $GREETING; pwd; cat", env={"GREETING": "grüß dich"}, cwd="/tmp", stdin="in\nput"
    )
    assert execution.stdout == "grüß dich\n/tmp\nin\nput"
    assert sandbox.run_command("pwd; id -un").stdout == "/workspace\nuser\n"
    assert sandbox.run_command("id -un", user="root").stdout == "root\n"


def test_a_program_and_its_arguments(sandbox: Sandbox) -> None:
    assert sandbox.run_command(["echo", "a  b", "$HOME", "'"]).stdout == "a  b $HOME '\n"


def test_much_output_says_where_it_is_cut(sandbox: Sandbox) -> None:
    execution = sandbox.run_code("print('x' * 3_000_000)", max_output_bytes=1000)
    assert execution.ok
    assert execution.stdout == "x" * 1000
    assert execution.truncated.stdout_bytes_dropped == 3_000_001 - 1000


def test_output_comes_while_code_runs(sandbox: Sandbox, folder: str) -> None:
    pieces: list[tuple[str, str]] = []
    came = threading.Event()

    def on_stdout(text: str) -> None:
        pieces.append(("stdout", text))
        came.set()

    def go_on() -> None:
        if came.wait(60):
            sandbox.write_file(f"{folder}/go", "on")

    answering = threading.Thread(target=go_on)
    answering.start()
    execution = sandbox.run_code(
        "import os, sys, time\nprint('one')\n"
        f"while not os.path.exists('{folder}/go'): time.sleep(0.02)\n"
        "print('two')\nprint('e', file=sys.stderr)",
        on_stdout=on_stdout,
        on_stderr=lambda text: pieces.append(("stderr", text)),
        timeout_seconds=60,
    )
    answering.join()
    assert execution.ok, "what it printed did not come while it ran"
    assert "".join(text for stream, text in pieces if stream == "stdout") == "one\ntwo\n"
    assert "".join(text for stream, text in pieces if stream == "stderr") == "e\n"
    assert execution.stdout == "one\ntwo\n"


def test_leaving_a_stream_ends_the_code(sandbox: Sandbox, folder: str) -> None:
    with pytest.raises(ZeroDivisionError):
        sandbox.run_command(
            f"while :; do echo; date +%s%N > {folder}/tick; sleep 0.1; done",
            on_stdout=lambda _: 1 / 0,
        )
    deadline = time.monotonic() + 60
    last = None
    while (now := sandbox.run_command(f"sleep 0.5; cat {folder}/tick").stdout) != last:
        assert time.monotonic() < deadline, "it still runs"
        last = now


def test_at_the_same_time(sandbox: Sandbox) -> None:
    outputs: dict[int, str] = {}

    def work(n: int) -> None:
        outputs[n] = sandbox.run_code(f"print({n})").stdout

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {n: f"{n}\n" for n in range(8)}


# Files.


@pytest.mark.parametrize(
    "content", [b"", b"x = 42", bytes(range(256)) * 5000], ids=["empty", "small", "binary"]
)
def test_files_come_back_as_they_were(sandbox: Sandbox, folder: str, content: bytes) -> None:
    path = f"{folder}/new/ä b#c?d&e%41.bin"
    entry = sandbox.write_file(path, content)
    assert (entry.path, entry.type, entry.size_bytes) == (path, "file", len(content))
    assert sandbox.read_file(path, format="bytes") == content
    with sandbox.read_file(path, format="stream") as stream:
        assert b"".join(stream) == content


def test_text_files(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/t", "grüß dich\n")
    assert sandbox.read_file(f"{folder}/t") == "grüß dich\n"
    sandbox.write_file(f"{folder}/t", "shorter")
    assert sandbox.read_file(f"{folder}/t") == "shorter"


def test_writing_from_files_and_iterators(sandbox: Sandbox, folder: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3_000_000))
    with local.open("rb") as file:
        sandbox.write_file(f"{folder}/f", file)
    assert sandbox.read_file(f"{folder}/f", format="bytes") == local.read_bytes()
    sandbox.write_file(f"{folder}/i", (f"{n}\n" for n in range(1000)))
    assert sandbox.run_command(f"wc -l < {folder}/i").stdout.strip() == "1000"


def test_relative_paths_are_below_workspace(sandbox: Sandbox) -> None:
    assert sandbox.write_file("rel.txt", "r").path == "/workspace/rel.txt"
    sandbox.files.remove("rel.txt")


def test_what_list_and_stat_say(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/d/f", "12345")
    sandbox.run_command(f"ln -s d {folder}/l; chmod 600 {folder}/d/f")
    by_name = {entry.name: entry for entry in sandbox.list_files(folder)}
    assert sorted(by_name) == ["d", "l"]
    assert by_name["d"].is_dir
    assert (by_name["l"].type, by_name["l"].symlink_target) == ("symlink", f"{folder}/d")
    deep = sandbox.list_files(folder, depth=2)
    assert f"{folder}/d/f" in [entry.path for entry in deep]
    entry = sandbox.files.stat(f"{folder}/d/f")
    assert (entry.size_bytes, entry.mode, entry.owner, entry.group) == (5, "0600", "user", "user")
    assert entry.modified_at is not None
    assert abs(entry.modified_at.timestamp() - time.time()) < 60


def test_making_moving_and_removing(sandbox: Sandbox, folder: str) -> None:
    assert sandbox.files.make_dir(f"{folder}/a/b").is_dir
    with pytest.raises(ConflictError):
        sandbox.files.make_dir(f"{folder}/a/b")
    assert sandbox.files.make_dir(f"{folder}/a/b", exist_ok=True).is_dir
    sandbox.write_file(f"{folder}/a/b/f", "f")
    assert sandbox.files.move(f"{folder}/a", f"{folder}/c").path == f"{folder}/c"
    assert sandbox.files.exists(f"{folder}/c/b/f")
    assert not sandbox.files.exists(f"{folder}/a")
    with pytest.raises(ConflictError):
        sandbox.files.remove(f"{folder}/c")
    sandbox.delete_file(f"{folder}/c/b/f")
    sandbox.files.remove(f"{folder}/c", recursive=True)
    assert sandbox.list_files(folder) == []


def test_what_is_not_there(sandbox: Sandbox, folder: str) -> None:
    for call in (sandbox.read_file, sandbox.files.stat, sandbox.list_files, sandbox.files.remove):
        with pytest.raises(NotFoundError):
            call(f"{folder}/no")
    with pytest.raises(NotFoundError):
        sandbox.files.move(f"{folder}/no", f"{folder}/yes")


@pytest.mark.parametrize("path", ["", "a\0b", "/" + "a" * 5000], ids=["empty", "zero byte", "long"])
def test_paths_that_are_none(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(InvalidRequestError):
        sandbox.read_file(path)


def test_parts_of_files(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/f", "0123456789")
    assert sandbox.files.read(f"{folder}/f", start=2, length=3) == "234"
    assert sandbox.files.read(f"{folder}/f", "bytes", start=-2) == b"89"
    with pytest.raises(InvalidRequestError):
        sandbox.files.read(f"{folder}/f", start=10)


def test_copying_and_permissions(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/d/run.sh", "echo ran")
    copied = sandbox.files.copy(f"{folder}/d", f"{folder}/e", recursive=True)
    assert (copied.entry.path, copied.files, copied.bytes) == (f"{folder}/e", 1, 8)
    with pytest.raises(ConflictError):
        sandbox.files.copy(f"{folder}/d/run.sh", f"{folder}/e/run.sh")
    assert sandbox.files.chmod(f"{folder}/e/run.sh", 0o755) == 1
    assert sandbox.run_command(f"{folder}/e/run.sh").stdout == "ran\n"
    assert sandbox.files.chmod(f"{folder}/e", "700", recursive=True) == 2


def test_search(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/a.py", "import os\n\ndef main():\n    pass\n")
    sandbox.write_file(f"{folder}/b.txt", "def text")
    found = sandbox.files.search(r"def \w+", folder, globs=["*.py"], context_lines=1)
    assert [(match.path, match.line, match.text) for match in found] == [
        (f"{folder}/a.py", 3, "def main():")
    ]
    assert found.matches[0].spans == ((0, 8),)
    assert found.matches[0].after == ("    pass",)
    by_name = sandbox.files.search(path=folder, globs=["*.txt"])
    assert [match.path for match in by_name] == [f"{folder}/b.txt"]
    with pytest.raises(InvalidRequestError):
        sandbox.files.search("(", folder)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_archives(sandbox: Sandbox, folder: str, kind: ArchiveFormat) -> None:
    sandbox.write_file(f"{folder}/d/sub/f", "content")
    with sandbox.files.read_archive(f"{folder}/d", kind) as stream:
        archive = stream.read_all()
    if kind == "zip":
        assert "sub/f" in zipfile.ZipFile(io.BytesIO(archive)).namelist()
    else:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            assert any(name.endswith("sub/f") for name in tar.getnames())
    written = sandbox.files.write_archive(f"{folder}/new", io.BytesIO(archive))
    assert (written.path, written.files, written.bytes) == (f"{folder}/new", 1, 7)
    assert sandbox.read_file(f"{folder}/new/sub/f") == "content"
    with pytest.raises(InvalidRequestError):
        sandbox.files.write_archive(f"{folder}/bad", b"no archive")


def test_replacing_and_batches(sandbox: Sandbox, folder: str) -> None:
    done = sandbox.files.batch(
        [
            FileOperation("write", f"{folder}/a.py", content="x = 1\nx = 2\n", mode=0o640),
            FileOperation("write", f"{folder}/b.bin", content=b"\xff\0"),
            FileOperation("read", f"{folder}/b.bin"),
            FileOperation("stat", f"{folder}/no"),
            FileOperation("list", folder),
        ]
    )
    assert done.failed == 1
    assert done[0].entry is not None
    assert (done[0].entry.mode, done[2].content) == ("0640", b"\xff\0")
    assert isinstance(done[3].error, NotFoundError)
    assert [entry.name for entry in done[4].entries] == ["a.py", "b.bin"]
    replaced = sandbox.files.replace(
        folder, r"x = (\d)", "y = $1", regex=True, globs=["*.py"], expected_count=2
    )
    assert (replaced.count, replaced.files[0].lines) == (2, (1, 2))
    assert sandbox.read_file(f"{folder}/a.py") == "y = 1\ny = 2\n"
    with pytest.raises(ConflictError):
        sandbox.files.replace(f"{folder}/a.py", "y", "z", expected_count=1)


def test_many_files_at_once(sandbox: Sandbox, folder: str) -> None:
    names = ["plain", 'd/ä b"c"\\d%41.txt', "empty"]
    contents: dict[str, Data] = {names[0]: "text", names[1]: [b"pie", "ces"], names[2]: b""}
    written = sandbox.files.write_many(contents, folder)
    assert [entry.path for entry in written] == [f"{folder}/{name}" for name in names]
    assert sandbox.read_file(f"{folder}/{names[1]}") == "pieces"
    with pytest.raises(InvalidRequestError):
        sandbox.files.write_many({"../out": ""}, folder)


def test_changes_and_watching(sandbox: Sandbox, folder: str) -> None:
    start = sandbox.files.changes(folder, recursive=True)
    assert (start.changes, start.reset) == ((), False)
    with sandbox.files.watch(folder, recursive=True) as watch:
        sandbox.write_file(f"{folder}/d/f", "1")
        seen = {next(watch).path}
        while f"{folder}/d/f" not in seen:
            seen.add(next(watch).path)
        assert watch.cursor
    since = sandbox.files.changes(folder, since=start.cursor, recursive=True)
    assert ("created", f"{folder}/d") in [(change.type, change.path) for change in since]
    assert sandbox.files.changes(folder, since="forgotten-1").reset
    with sandbox.files.watch(f"{folder}/d") as watch:
        sandbox.files.remove(f"{folder}/d", recursive=True)
        with pytest.raises(NotFoundError):
            for _ in watch:
                pass
    with pytest.raises(NotFoundError):
        sandbox.files.watch(f"{folder}/no")


def test_signed_urls(sandbox: Sandbox, client: Client, folder: str) -> None:
    upload = sandbox.files.sign(f"{folder}/f", "PUT")
    download = sandbox.files.sign(f"{folder}/f", expires_in_seconds=60)
    assert (upload.method, download.method) == ("PUT", "GET")
    assert download.expires_at
    assert httpx.put(upload.url, content=b"by anyone").status_code == 200
    assert httpx.get(str(download)).content == b"by anyone"
    assert httpx.get(upload.url).status_code == 403
    client.rotate_signing_key()
    assert httpx.get(download.url).status_code == 403


def test_git(sandbox: Sandbox, folder: str) -> None:
    git, author = sandbox.git, ("Ada", "ada@example.com")
    sandbox.run_command(f"git init -q --bare -b main {folder}/origin.git")
    head = git.clone(f"{folder}/origin.git", f"{folder}/app")
    assert (head.path, head.commit) == (f"{folder}/app", None)
    sandbox.write_file(f"{folder}/app/main.py", "print(1)\n")
    assert [(file.path, file.worktree) for file in git.status(head.path)] == [
        ("main.py", "untracked")
    ]
    assert git.add(["main.py"], head.path).files[0].index == "added"
    first = git.commit("Begin", head.path, author=author)
    assert (first.branch, len(first.commit or "")) == ("main", 40)
    with pytest.raises(ConflictError):
        git.commit("Nothing", head.path, author=author)
    pushed = git.push(head.path, set_upstream=True)
    assert (pushed.commit, pushed.remote) == (first.commit, "origin")
    other = git.clone(f"{folder}/origin.git", f"{folder}/other")
    assert git.checkout("feature", other.path, create=True).branch == "feature"
    assert git.branches(other.path).current == "feature"
    git.checkout("main", other.path)
    sandbox.write_file(f"{folder}/app/main.py", "print(2)\n")
    second = git.commit("Go on", head.path, author=author, all=True)
    git.push(head.path)
    pulled = git.pull(other.path)
    assert (pulled.updated, pulled.commit) == (True, second.commit)
    assert git.status(other.path).clean
    with pytest.raises(CloudSandboxError):
        git.clone("http://127.0.0.1:1/app.git", credentials=GitCredentials("the-t0ken"))
    assert "the-t0ken" not in repr(GitCredentials("the-t0ken"))


# State between executions.


def test_python_keeps_its_state(sandbox: Sandbox) -> None:
    assert sandbox.run_code("x = 41").ok
    execution = sandbox.run_code("x + 1")
    assert execution.result is not None
    assert str(execution.result) == "42"
    assert execution.context_id == "python"
    assert not execution.context_ended


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_other_languages_keep_their_state(sandbox: Sandbox, language: str) -> None:
    assert sandbox.run_code("let x = 41", language=language).ok
    execution = sandbox.run_code("x + 1", language=language)
    assert execution.result is not None
    assert str(execution.result) == "42"
    context = sandbox.contexts.create(language)
    assert sandbox.run_code("x", context=context).status == "error"
    sandbox.contexts.delete(context)


def test_results_come_as_code_shows_them(sandbox: Sandbox) -> None:
    shown: list[Result] = []
    execution = sandbox.run_code(
        "class H:\n    def _repr_html_(self): return '<b>1</b>'\ndisplay(H())\n2",
        on_result=shown.append,
    )
    assert execution.ok, execution
    assert [(result.html, result.is_main_result) for result in shown] == [
        ("<b>1</b>", False),
        (None, True),
    ]
    assert list(execution.results) == shown


def test_contexts(sandbox: Sandbox) -> None:
    context = sandbox.contexts.create("python", cwd="/tmp")
    assert (context.language, context.cwd, context.default) == ("python", "/tmp", False)
    sandbox.run_code("y = 1", context=context)
    assert sandbox.run_code("y", context=context.context_id).ok
    assert sandbox.run_code("y").status == "error"  # the default one has others
    assert context.context_id in [found.context_id for found in sandbox.contexts.list()]
    sandbox.contexts.restart(context)
    execution = sandbox.run_code("y", context=context)
    assert execution.status == "error"
    assert execution.error is not None
    assert execution.error.name == "NameError"
    assert sandbox.contexts.interrupt(context) is False
    sandbox.contexts.delete(context)
    with pytest.raises(NotFoundError):
        sandbox.run_code("y", context=context)


# A Sandbox's life.


def test_options_of_create(sdk: Flavour, client: Client) -> None:
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    with sdk.Sandbox.create(
        client=client,
        template="base",
        name=name,
        timeout_seconds=120,
        network="none",
        env={"GREETING": "hello"},
        metadata={"suite": name},
        resources=Resources(memory_mb=256, pids=128),
        cwd="/tmp",
    ) as sandbox:
        info = sandbox.info()
        assert (info.sandbox_id, info.state, info.name) == (sandbox.sandbox_id, "running", name)
        assert (info.template, info.network, info.timeout_seconds) == ("base", "none", 120)
        assert (info.shape.memory_mb, info.shape.pids) == (256, 128)
        assert info.metadata == {"suite": name}
        assert info.created_at
        assert info.deadline
        assert 60 < (info.deadline - info.created_at).total_seconds() <= 180
        assert sandbox.run_command("echo $GREETING; pwd").stdout == "hello\n/tmp\n"
        with pytest.raises(ConflictError):
            sdk.Sandbox.create(client=client, name=name)
        with sdk.Sandbox.connect(name, client=client) as same:
            assert same.sandbox_id == sandbox.sandbox_id
        assert sandbox.info().state == "ended"


def test_changes_while_it_runs(sdk: Flavour, client: Client) -> None:
    with sdk.Sandbox.create(client=client, metadata={"a": "1", "b": "2"}) as sandbox:
        name = f"sdk-{uuid.uuid4().hex[:8]}"
        info = sandbox.update(
            name=name,
            metadata={"a": None, "c": "3"},
            env={"GREETING": "hello"},
            resources=Resources(memory_mb=256),
            idle_timeout_seconds=600,
            checkpoint_every_seconds=3600,
        )
        assert (info.checkpoint_every_seconds, info.restored_from) == (3600, "")
        assert (info.name, info.metadata) == (name, {"b": "2", "c": "3"})
        assert (info.resources.memory_mb, info.idle_timeout_seconds) == (256, 600)
        assert sandbox.run_command("echo $GREETING").stdout == "hello\n"
        same = sdk.Sandbox.create(client=client, name=name, if_exists="return")
        assert same.sandbox_id == sandbox.sandbox_id
        info = sandbox.update(name="", idle_timeout_seconds=0, checkpoint_every_seconds=0)
        assert (info.name, info.idle_timeout_seconds) == ("", None)
        assert info.checkpoint_every_seconds is None
        with pytest.raises(ConflictError):
            sandbox.update(resources=Resources(memory_mb=100_000))
        sandbox.set_timeout(60)
        touched = sandbox.touch()
        assert touched.deadline
        assert touched.timeout_seconds == 60


def test_numbers_of_the_server(sandbox: Sandbox, client: Client) -> None:
    stats = client.stats()
    assert stats.sandboxes["running"] >= 1, sandbox
    assert stats.nodes[0].ready
    assert stats.depths is not None
    assert stats.depths.active >= 1


def test_the_end_of_a_life(sdk: Flavour, client: Client) -> None:
    sandbox = sdk.Sandbox.create(client=client)
    assert sandbox.sandbox_id in [info.sandbox_id for info in sdk.Sandbox.list(client=client)]
    assert sandbox.kill()
    assert not sandbox.kill()
    assert sandbox.sandbox_id not in [info.sandbox_id for info in sdk.Sandbox.list(client=client)]
    ended = sandbox.info().ended
    assert ended is not None
    assert ended.cause == "released"
    with pytest.raises((NotFoundError, ConflictError)):
        sandbox.run_command("true")
    with pytest.raises(NotFoundError):
        sdk.Sandbox.connect(sandbox.sandbox_id, client=client)


def test_an_exception_ends_the_sandbox(sdk: Flavour, client: Client) -> None:
    with pytest.raises(ZeroDivisionError), sdk.Sandbox.create(client=client) as sandbox:
        _ = 1 / 0
    assert sandbox.info().state == "ended"


def test_a_program_that_dies_leaves_nothing() -> None:
    owner = f"sdk-{uuid.uuid4().hex[:8]}"
    keyed = bool(os.environ.get("CLOUD_SANDBOX_API_KEY"))
    program = (
        "import sys, time\n"
        "from cloud_sandbox import Sandbox\n"
        "with Sandbox.create(user_id=sys.argv[1] or None, timeout_seconds=3) as sandbox:\n"
        "    print(sandbox.sandbox_id, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, "" if keyed else owner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        sandbox_id = child.stdout.readline().strip()
        child.kill()
    with Client(user_id=None if keyed else owner) as its:
        sandbox = Sandbox(its, sandbox_id, owns_client=False)
        for _ in range(600):  # a minute
            info = sandbox.info()
            if info.state not in ("running", "stopping"):
                break
            time.sleep(0.1)
        assert info.state == "ended"


def test_deadlines_move(sdk: Flavour, client: Client) -> None:
    with sdk.Sandbox.create(client=client, on_timeout="pause") as sandbox:
        farther = sandbox.set_timeout(3600)
        assert farther.timeout_seconds == 3600
        sandbox.set_timeout(1)
        give_up = time.monotonic() + 60
        while sandbox.info().state != "paused":
            assert time.monotonic() < give_up, "the deadline has no effect"
            time.sleep(0.2)
        with pytest.raises(InvalidRequestError):
            sandbox.set_timeout(10**6)


@pytest.mark.parametrize(
    "options",
    [
        {"name": "No Such Name"},
        {"timeout_seconds": -1},
        {"network": "everything"},
        {"env": {"1A": "x"}},
        {"resources": {"memory_mb": 1}},
        {"resources": {"gpus": 1}},
    ],
    ids=["name", "timeout", "network", "env", "memory", "unknown resource"],
)
def test_options_that_break_a_rule(
    sdk: Flavour, client: Client, options: dict[str, object]
) -> None:
    with pytest.raises(InvalidRequestError):
        sdk.Sandbox.create(client=client, **options)  # type: ignore[arg-type]


def test_an_unknown_template(sdk: Flavour, client: Client) -> None:
    with pytest.raises((NotFoundError, InvalidRequestError, UnsupportedError)):
        sdk.Sandbox.create(client=client, template="no-such-template")


def test_created_once(sdk: Flavour, client: Client, sandbox: Sandbox) -> None:
    key = uuid.uuid4().hex
    with (
        sdk.Sandbox.create(client=client, idempotency_key=key) as one,
        sdk.Sandbox.create(client=client, idempotency_key=key) as other,
    ):
        assert one.sandbox_id == other.sandbox_id
        with pytest.raises(ConflictError):
            sdk.Sandbox.create(client=client, idempotency_key=key, timeout_seconds=5)
    made = [sandbox.contexts.create("python", idempotency_key=key + "c") for _ in range(2)]
    assert made[0].context_id == made[1].context_id
    sandbox.contexts.delete(made[0])


# Saving, copying, going back.


def test_a_sandbox_that_pauses(sdk: Flavour, client: Client) -> None:
    with sdk.Sandbox.create(client=client, metadata={"k": "v"}, on_timeout="end") as sandbox:
        sandbox.run_code("x = 42")
        paused = sandbox.pause()
        assert (paused.state, paused.on_timeout, paused.auto_resume) == ("paused", "end", True)
        assert paused.snapshot_id
        assert sandbox.update(auto_resume=False).state == "paused"
        with pytest.raises(ConflictError):
            sandbox.run_code("x")
        assert sandbox.resume().state == "running"
        assert str(sandbox.run_code("x + 1").result) == "43"
        sandbox.write_file("/workspace/kept", "yes")
        assert sandbox.pause(memory=False).state == "paused"
        sandbox.resume()
        assert sandbox.read_file("/workspace/kept") == "yes"
        assert not sandbox.run_code("x").ok


def test_snapshots(sdk: Flavour, client: Client) -> None:
    with sdk.Sandbox.create(client=client) as sandbox:
        sandbox.run_code("x = 'before'")
        before = sandbox.snapshot("before")
        assert (before.name, before.kept, before.memory) == ("before", True, True)
        assert before.size_bytes > 0
        with pytest.raises(ConflictError):
            sandbox.snapshot("before")
        sandbox.run_code("x = 'after'")
        assert sandbox.rollback(before).timeline == 2
        assert str(sandbox.run_code("x").result) == "'before'"
        assert sandbox.rollback("before").timeline == 3
        assert [one.snapshot_id for one in sandbox.history() if one.current] == [before.snapshot_id]
        with pytest.raises(NotFoundError):
            sandbox.rollback("never")
        with sdk.Sandbox.create(client=client, snapshot=before) as other:
            assert str(other.run_code("x").result) == "'before'"
    assert before.snapshot_id in [one.snapshot_id for one in client.snapshots.list()]
    assert client.snapshots.get(before).uses == 0
    client.snapshots.delete(before)
    with pytest.raises(NotFoundError):
        client.snapshots.get(before)


def test_forks(sdk: Flavour, client: Client) -> None:
    with sdk.Sandbox.create(client=client, metadata={"a": "1"}) as sandbox:
        sandbox.run_code("import random; x = 42; random.random()")
        forks = sandbox.fork(2, name="fork-" + uuid.uuid4().hex[:8], metadata={"b": "2"})
        drawn = {str(one.run_code("(x, random.random())").result) for one in [sandbox, *forks]}
        assert len(drawn) == 3
        assert all(result.startswith("(42, ") for result in drawn)
        info = forks[1].info()
        assert info.name.endswith("-2")
        assert info.metadata == {"a": "1", "b": "2"}
        assert all(fork.kill() for fork in forks)
        with pytest.raises(InvalidRequestError):
            sandbox.fork(0)


# Who is who.


def test_keys(sdk: Flavour, client: Client, sandbox: Sandbox) -> None:
    made = client.keys.create("reads", scopes=["read"], expires_in_seconds=600)
    assert made.key
    assert made.key.endswith(made.hint)
    assert made.key not in repr(made)
    listed = {key.key_id: key for key in client.keys.list()}
    assert (listed[made.key_id].name, listed[made.key_id].key) == ("reads", None)
    with sdk.Client(api_key=made.key) as reader:
        found = sdk.Sandbox.list(client=reader)
        assert sandbox.sandbox_id in [info.sandbox_id for info in found]
        with pytest.raises(PermissionDeniedError):
            sdk.Sandbox.create(client=reader)
        rotated = client.keys.rotate(made, overlap_seconds=60)
        assert rotated.previous
        assert (rotated.key_id, rotated.previous.hint) == (made.key_id, made.hint)
        sdk.Sandbox.list(client=reader)
        with sdk.Client(api_key=rotated.key) as again:
            sdk.Sandbox.list(client=again)
        assert client.keys.rotate(made, overlap_seconds=0).previous is None
        with pytest.raises(AuthenticationError):
            sdk.Sandbox.list(client=reader)
        client.keys.delete(made)
        with pytest.raises(AuthenticationError):
            sdk.Sandbox.list(client=reader)
    with pytest.raises(NotFoundError):
        client.keys.delete(made.key_id)
    with pytest.raises(InvalidRequestError):
        client.keys.create("")


@pytest.mark.skipif(
    bool(os.environ.get("CLOUD_SANDBOX_API_KEY")), reason="needs dev mode for tokens of roles"
)
def test_users(sdk: Flavour) -> None:
    me = f"sdk-{uuid.uuid4().hex[:8]}"

    def token(role: str) -> str:
        answer = httpx.post(
            f"{os.environ['CLOUD_SANDBOX_URL']}/api/v1/auth/token",
            json={"user_id": me, "role": role},
            timeout=60,
        )
        return str(answer.raise_for_status().json()["access_token"])

    with sdk.Client(token=token("viewer")) as viewer, pytest.raises(PermissionDeniedError):
        viewer.users.list()
    with sdk.Client(token=token("owner")) as owner:
        mine = owner.users.get(me)
        assert (mine.role, mine.role_given, mine.source, mine.state) == (
            "owner",
            False,
            "token",
            "active",
        )
        assert mine.last_seen_at
        added = owner.users.add("corp:a/b é", role="viewer", name="Ann", email="ann@example.com")
        assert (added.user_id, added.role, added.role_given) == ("corp:a/b é", "viewer", True)
        assert (added.source, added.last_seen_at) == ("invited", None)
        assert (added.name, added.email) == ("Ann", "ann@example.com")
        assert owner.users.get(added) == added
        assert [user.user_id for user in owner.users.list()] == ["corp:a/b é", me]
        with pytest.raises(ConflictError):
            owner.users.add(added)

        changed = owner.users.update(added, state="suspended", role="admin", name="")
        assert (changed.state, changed.role, changed.name) == ("suspended", "admin", None)
        assert changed.email == "ann@example.com"
        assert owner.users.list(state="suspended") == [changed]
        changed = owner.users.update(added, state="active", role="credential")
        assert (changed.state, changed.role, changed.role_given) == ("active", None, False)

        with pytest.raises(PermissionDeniedError):
            owner.users.update(added, role="operator")
        with pytest.raises(ConflictError):
            owner.users.update(me, state="suspended")
        with pytest.raises(ConflictError, match="last owner"):
            owner.users.update(mine, role="viewer")
        with pytest.raises(ConflictError):
            owner.users.remove(me)
        with pytest.raises(InvalidRequestError):
            owner.users.add("corp:c", email="nowhere")

        owner.users.remove(added)
        for gone in (owner.users.get, owner.users.remove):
            with pytest.raises(NotFoundError):
                gone(added)
        assert [user.user_id for user in owner.users.list(state="removed")] == ["corp:a/b é"]
        assert owner.users.add(added, role="user").role == "user"
        assert owner.users.list(state="removed") == []
    with sdk.Client(token=token("admin")) as admin:
        admin.users.get(me)  # who is an admin now, by their last token
        with pytest.raises(PermissionDeniedError):
            admin.users.update(added, role="owner")


def test_a_bad_token(sdk: Flavour) -> None:
    with pytest.raises(AuthenticationError):
        sdk.Sandbox.list(token="not.a.token")


@pytest.mark.skipif(
    bool(os.environ.get("CLOUD_SANDBOX_API_KEY")), reason="needs dev mode for a second user"
)
def test_others_see_nothing(sdk: Flavour, sandbox: Sandbox) -> None:
    with sdk.Client(user_id=f"sdk-{uuid.uuid4().hex[:8]}") as other:
        assert sdk.Sandbox.list(client=other) == []
        with pytest.raises(NotFoundError) as theirs:
            sdk.Sandbox.connect(sandbox.sandbox_id, client=other)
        nobodys = "i" + "0" * 20
        with pytest.raises(NotFoundError) as absent:
            sdk.Sandbox.connect(nobodys, client=other)
        # Each repeats what was asked for.
        assert str(theirs.value).replace(sandbox.sandbox_id, nobodys) == str(absent.value)
        stolen = sdk.Sandbox(other, sandbox.sandbox_id, owns_client=False)
        for call in (lambda: stolen.run_command("true"), lambda: stolen.read_file("/etc/hosts")):
            with pytest.raises(NotFoundError):
                call()
        assert not stolen.kill()
    assert sandbox.run_command("true").ok
