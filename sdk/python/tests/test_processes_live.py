"""Processes and terminals on a real server."""

from __future__ import annotations

import threading
import uuid

import pytest

from cloud_sandbox import (
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    Sandbox,
    SandboxTimeoutError,
    TerminalSize,
)

pytestmark = pytest.mark.integration


def named() -> str:
    return f"p{uuid.uuid4().hex[:8]}"


def test_a_process_that_is_left_alone(sandbox: Sandbox) -> None:
    name = named()
    process = sandbox.processes.start(
        "echo out; echo err >&2; read go; echo end; exit 3", name=name, keep_stdin=True
    )
    assert process.info.state == "running"
    assert process.wait_for_log("^out$")
    assert process.wait_for_log("^err$")  # of another pipe: from here on the order is known
    process.write("go\n")
    info = process.wait(60)
    assert (info.status, info.exit_code, info.name, info.ok) == ("error", 3, name, False)
    assert info.error is not None
    assert info.ended
    output = process.output()
    assert sorted(output.text.split()) == ["end", "err", "out"]
    assert (output.next_offset, output.dropped, output.ended) == (12, 0, True)
    assert process.output(stream="stderr").data == b"err\n"
    assert process.output(-4).text == "end\n"
    assert sandbox.processes.get(name).process_id == process.process_id
    assert process.process_id in [found.process_id for found in sandbox.processes.list("ended")]
    assert process.process_id not in [
        found.process_id for found in sandbox.processes.list("running")
    ]


def test_following(sandbox: Sandbox) -> None:
    process = sandbox.processes.start("for i in 1 2 3; do echo $i; sleep 0.1; done; echo ä >&2")
    with process.follow() as output:
        pieces = list(output)
    assert "".join(piece.text for piece in pieces if piece.stream == "stdout") == "1\n2\n3\n"
    assert "".join(piece.text for piece in pieces if piece.stream == "stderr") == "ä\n"
    assert process.info.ok
    assert output.offset == pieces[-1].next_offset == 9
    again = [piece.text for piece in process.follow(pieces[0].next_offset, "stdout")]
    assert "".join(again) == "".join(p.text for p in pieces[1:] if p.stream == "stdout")


def test_run_keeps_and_tells_all(sandbox: Sandbox) -> None:
    heard: list[str] = []
    execution = sandbox.processes.run(
        ["sh", "-c", 'echo "$A"; cat; seq 5; exit 4'],
        env={"A": "ä  b"},
        cwd="/tmp",
        stdin="typed\n",
        on_stdout=heard.append,
    )
    assert (execution.status, execution.exit_code) == ("error", 4)
    assert execution.stdout == "".join(heard) == "ä  b\ntyped\n1\n2\n3\n4\n5\n"
    assert sandbox.processes.run("pwd; id -un", cwd="/tmp", user="root").stdout == "/tmp\nroot\n"
    cut = sandbox.processes.run("head -c 3000000 /dev/zero | tr '\\0' x", max_output_bytes=1000)
    assert cut.stdout == "x" * 1000
    assert cut.truncated.stdout_bytes_dropped == 3_000_000 - 1000
    late = sandbox.processes.run("sleep 60", timeout_seconds=1)
    assert (late.status, late.exit_code) == ("timeout", 124)


def test_an_exception_while_it_runs_ends_it(sandbox: Sandbox) -> None:
    mark = named()
    with pytest.raises(ZeroDivisionError):
        sandbox.processes.run(f"echo {mark}; sleep 600", on_stdout=lambda _: 1 / 0)
    [info] = [info for info in sandbox.processes.list() if mark in info.command]
    assert info.ended


def test_input_and_signals(sandbox: Sandbox) -> None:
    process = sandbox.processes.start("cat; echo done", keep_stdin=True)
    process.write("one ")
    process.write(b"two\n", eof=True)
    assert process.wait(60).ok
    assert process.output().text == "one two\ndone\n"
    with pytest.raises(ConflictError):
        process.write("late")
    process = sandbox.processes.start(
        "trap 'echo got it; exit 5' USR1; echo ready; sleep 600 & wait"
    )
    assert process.wait_for_log("^ready$").line == "ready"
    with pytest.raises(InvalidRequestError):
        process.signal("NONSENSE")
    process.signal("USR1")
    assert process.wait(60).exit_code == 5
    process = sandbox.processes.start(["sleep", "600"])
    with pytest.raises(SandboxTimeoutError):
        process.wait(0.1)
    ended = process.kill()
    assert (ended.status, ended.exit_code) == ("killed", 143)
    assert process.kill().exit_code == 143


def test_waiting_for_a_server(sandbox: Sandbox) -> None:
    process = sandbox.processes.start("python3 -m http.server 8765", name=named())
    assert process.wait_for_port(8765)
    answer = process.wait_for_http(8765, "/")
    assert (answer.met, answer.http_status) == (True, 200)
    assert not process.wait_for_port(9, timeout_seconds=0.2)
    process.kill()
    assert not process.wait_for_log("never", timeout_seconds=60)


def test_shells_and_keys(sandbox: Sandbox) -> None:
    shell = named()
    assert sandbox.processes.run("cd /tmp; COLOUR=blue", shell=shell).ok
    assert sandbox.processes.run("echo $PWD $COLOUR", shell=shell).stdout == "/tmp blue\n"
    key = uuid.uuid4().hex
    first = sandbox.processes.start("sleep 1", idempotency_key=key)
    again = sandbox.processes.start("sleep 1", idempotency_key=key)
    assert first.process_id == again.process_id
    with pytest.raises(ConflictError):
        sandbox.processes.start("sleep 2", idempotency_key=key)


def test_what_cannot_be_started(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidRequestError):
        sandbox.processes.start("")
    with pytest.raises(InvalidRequestError):
        sandbox.processes.start("true", name="No Name")
    with pytest.raises(NotFoundError):
        sandbox.processes.get("no-such-process")
    with pytest.raises(InvalidRequestError, match="no-such-program"):
        sandbox.processes.run(["no-such-program"])


def test_a_terminal(sandbox: Sandbox) -> None:
    shown = b""
    with sandbox.processes.open_terminal("bash --norc", cols=100, rows=30) as terminal:
        terminal.write("stty size; echo $((6*7))$USER\n")
        for data in terminal:
            shown += data
            if b"42user" in shown:
                break
        assert b"30 100" in shown
        terminal.resize(120, 40)
        terminal.write(b"stty size\n")
        while b"40 120" not in shown:
            shown += next(terminal)
        offset = terminal.offset
        process = sandbox.processes.get(terminal.process_id)
    assert process.info.pty == TerminalSize(120, 40)
    process.resize(80, 24)
    with process.attach(offset) as one, process.attach(0) as other:
        one.write("exit 3\n")
        everything = b"".join(other)
        assert shown in everything
        b"".join(one)
        assert one.info is not None
        assert one.info.exit_code == 3
        assert one.offset == other.offset == one.info.output_end


def test_a_terminal_s_end_of_input_and_interrupt(sandbox: Sandbox) -> None:
    with sandbox.processes.open_terminal(["cat"]) as terminal:
        terminal.send_eof()
        assert b"".join(terminal) is not None
        assert terminal.info is not None
        assert terminal.info.ok
    with sandbox.processes.open_terminal("echo ready; sleep 600") as terminal:
        shown = b""
        while b"ready" not in shown:
            shown += next(terminal)
        terminal.signal("INT")
        b"".join(terminal)
        assert terminal.info is not None
        assert terminal.info.status == "killed"


def test_writing_while_another_reads(sandbox: Sandbox) -> None:
    with sandbox.processes.open_terminal(["cat"]) as terminal:

        def write() -> None:
            for n in range(200):
                terminal.write(f"line {n}\n")
            terminal.send_eof()

        writer = threading.Thread(target=write)
        writer.start()
        shown = b"".join(terminal)
        writer.join()
    assert b"line 199" in shown


def test_attaching_to_nothing(sandbox: Sandbox) -> None:
    process = sandbox.processes.start("true")
    process.wait(60)
    with process.attach() as terminal:
        assert list(terminal) == []
        assert terminal.info is not None
        assert terminal.info.ok
