"""Everything against a real server, whose address is CLOUD_SANDBOX_URL.

Without CLOUD_SANDBOX_API_KEY the server must be in dev mode.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud_sandbox import (
    AuthenticationError,
    Client,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    Resources,
    Sandbox,
    UnsupportedError,
)

pytestmark = pytest.mark.integration

SNIPPET = """
from cloud_sandbox import Sandbox

with Sandbox.create(base_url="http://localhost:8080", user_id="my-user") as sandbox:
    result = sandbox.run_code("print('Hello, Cloud Sandbox!')")
    print(result.stdout)
    result = sandbox.run_command("ls -la /workspace")
    sandbox.write_file("/workspace/test.py", "x = 42")
    files = sandbox.list_files("/workspace")
"""


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    user = None if os.environ.get("CLOUD_SANDBOX_API_KEY") else f"sdk-{uuid.uuid4().hex[:8]}"
    with Client(user_id=user) as client:
        yield client


@pytest.fixture(scope="module")
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client) as sandbox:
        yield sandbox


@pytest.fixture
def folder(sandbox: Sandbox) -> str:
    path = f"/workspace/{uuid.uuid4().hex}"
    sandbox.make_dir(path)
    return path


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


def test_output_comes_while_code_runs(sandbox: Sandbox) -> None:
    pieces: list[tuple[str, str]] = []
    seen_at: list[float] = []

    def on_stdout(text: str) -> None:
        pieces.append(("stdout", text))
        seen_at.append(time.monotonic())

    execution = sandbox.run_code(
        "import sys, time\nprint('one')\ntime.sleep(1)\nprint('two')\nprint('e', file=sys.stderr)",
        on_stdout=on_stdout,
        on_stderr=lambda text: pieces.append(("stderr", text)),
    )
    assert execution.ok
    assert "".join(text for stream, text in pieces if stream == "stdout") == "one\ntwo\n"
    assert "".join(text for stream, text in pieces if stream == "stderr") == "e\n"
    assert execution.stdout == "one\ntwo\n"
    assert seen_at[-1] - seen_at[0] > 0.5


def test_leaving_a_stream_ends_the_code(sandbox: Sandbox, folder: str) -> None:
    with pytest.raises(ZeroDivisionError):
        sandbox.run_command(
            f"while :; do echo; date +%s%N > {folder}/tick; sleep 0.1; done",
            on_stdout=lambda _: 1 / 0,
        )
    deadline = time.monotonic() + 10
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
    sandbox.remove("rel.txt")


def test_what_list_and_stat_say(sandbox: Sandbox, folder: str) -> None:
    sandbox.write_file(f"{folder}/d/f", "12345")
    sandbox.run_command(f"ln -s d {folder}/l; chmod 600 {folder}/d/f")
    by_name = {entry.name: entry for entry in sandbox.list_files(folder)}
    assert sorted(by_name) == ["d", "l"]
    assert by_name["d"].is_dir
    assert (by_name["l"].type, by_name["l"].symlink_target) == ("symlink", f"{folder}/d")
    deep = sandbox.list_files(folder, depth=2)
    assert f"{folder}/d/f" in [entry.path for entry in deep]
    entry = sandbox.stat(f"{folder}/d/f")
    assert (entry.size_bytes, entry.mode, entry.owner, entry.group) == (5, "0600", "user", "user")
    assert entry.modified_at is not None
    assert abs(entry.modified_at.timestamp() - time.time()) < 60


def test_making_moving_and_removing(sandbox: Sandbox, folder: str) -> None:
    assert sandbox.make_dir(f"{folder}/a/b").is_dir
    with pytest.raises(ConflictError):
        sandbox.make_dir(f"{folder}/a/b")
    assert sandbox.make_dir(f"{folder}/a/b", exist_ok=True).is_dir
    sandbox.write_file(f"{folder}/a/b/f", "f")
    assert sandbox.move(f"{folder}/a", f"{folder}/c").path == f"{folder}/c"
    assert sandbox.exists(f"{folder}/c/b/f")
    assert not sandbox.exists(f"{folder}/a")
    with pytest.raises(ConflictError):
        sandbox.remove(f"{folder}/c")
    sandbox.delete_file(f"{folder}/c/b/f")
    sandbox.remove(f"{folder}/c", recursive=True)
    assert sandbox.list_files(folder) == []


def test_what_is_not_there(sandbox: Sandbox, folder: str) -> None:
    for call in (sandbox.read_file, sandbox.stat, sandbox.list_files, sandbox.remove):
        with pytest.raises(NotFoundError):
            call(f"{folder}/no")
    with pytest.raises(NotFoundError):
        sandbox.move(f"{folder}/no", f"{folder}/yes")


@pytest.mark.parametrize("path", ["", "a\0b", "/" + "a" * 5000], ids=["empty", "zero byte", "long"])
def test_paths_that_are_none(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(InvalidRequestError):
        sandbox.read_file(path)


# A Sandbox's life.


def test_options_of_create(client: Client) -> None:
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    with Sandbox.create(
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
            Sandbox.create(client=client, name=name)
        with Sandbox.connect(name, client=client) as same:
            assert same.sandbox_id == sandbox.sandbox_id
        assert sandbox.info().state == "ended"


def test_the_end_of_a_life(client: Client) -> None:
    sandbox = Sandbox.create(client=client)
    assert sandbox.sandbox_id in [info.sandbox_id for info in Sandbox.list(client=client)]
    assert sandbox.kill()
    assert not sandbox.kill()
    assert sandbox.sandbox_id not in [info.sandbox_id for info in Sandbox.list(client=client)]
    ended = sandbox.info().ended
    assert ended is not None
    assert ended.cause == "released"
    with pytest.raises((NotFoundError, ConflictError)):
        sandbox.run_command("true")
    with pytest.raises(NotFoundError):
        Sandbox.connect(sandbox.sandbox_id, client=client)


def test_an_exception_ends_the_sandbox(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), Sandbox.create(client=client) as sandbox:
        _ = 1 / 0
    assert sandbox.info().state == "ended"


def test_deadlines_move(client: Client) -> None:
    with Sandbox.create(client=client) as sandbox:
        farther = sandbox.set_timeout(3600)
        assert farther.timeout_seconds == 3600
        sandbox.set_timeout(1)
        give_up = time.monotonic() + 20
        while sandbox.info().state != "ended":
            assert time.monotonic() < give_up, "the deadline has no effect"
            time.sleep(0.2)
        ended = sandbox.info().ended
        assert ended is not None
        assert ended.cause == "deadline"
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
def test_options_that_break_a_rule(client: Client, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        Sandbox.create(client=client, **options)  # type: ignore[arg-type]


def test_an_unknown_template(client: Client) -> None:
    with pytest.raises((NotFoundError, InvalidRequestError, UnsupportedError)):
        Sandbox.create(client=client, template="no-such-template")


# Who is who.


def test_a_bad_token() -> None:
    with pytest.raises(AuthenticationError):
        Sandbox.list(token="not.a.token")


@pytest.mark.skipif(
    bool(os.environ.get("CLOUD_SANDBOX_API_KEY")), reason="needs dev mode for a second user"
)
def test_others_see_nothing(sandbox: Sandbox) -> None:
    with Client(user_id=f"sdk-{uuid.uuid4().hex[:8]}") as other:
        assert Sandbox.list(client=other) == []
        with pytest.raises(NotFoundError) as theirs:
            Sandbox.connect(sandbox.sandbox_id, client=other)
        with pytest.raises(NotFoundError) as absent:
            Sandbox.connect("i" + "0" * 20, client=other)
        assert str(theirs.value) == str(absent.value)
        stolen = Sandbox(other, sandbox.sandbox_id, owns_client=False)
        for call in (lambda: stolen.run_command("true"), lambda: stolen.read_file("/etc/hosts")):
            with pytest.raises(NotFoundError):
                call()
        assert not stolen.kill()
    assert sandbox.run_command("true").ok
