"""LangChain's suite for sandboxes, and what it does not ask, over our backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cloud_sandbox import ConflictError, Sandbox
from cloud_sandbox.deepagents import SandboxBackend
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestStandard(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self) -> Iterator[SandboxBackend]:
        with Sandbox.create() as sandbox:
            yield SandboxBackend(sandbox)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox


@pytest.fixture
def backend(sandbox: Sandbox) -> SandboxBackend:
    return SandboxBackend(sandbox)


def test_output_has_the_order_in_which_it_was_written(backend: SandboxBackend) -> None:
    answer = backend.execute("echo one; echo two >&2; echo three; exit 3")
    assert (answer.output, answer.exit_code) == ("one\ntwo\nthree\n", 3)


def test_a_command_in_several_lines(backend: SandboxBackend) -> None:
    answer = backend.execute("x=1\ncat <<END\n$x\nEND\n# a comment")
    assert (answer.output, answer.exit_code) == ("1\n", 0)


def test_a_command_that_is_no_shell(backend: SandboxBackend) -> None:
    answer = backend.execute("if")
    assert answer.exit_code == 2
    assert "syntax error" in answer.output


def test_a_command_that_takes_too_long(sandbox: Sandbox, backend: SandboxBackend) -> None:
    for answer in (
        backend.execute("sleep 100", timeout=1),
        SandboxBackend(sandbox, timeout_seconds=1).execute("sleep 100"),
    ):
        assert answer.exit_code == 124
        assert "timeout: it ran longer than its limit of 1s" in answer.output
    assert backend.execute("echo on", timeout=0).output == "on\n"


def test_output_that_is_cut(backend: SandboxBackend) -> None:
    answer = backend.execute("head -c 3000000 /dev/zero | tr '\\0' x")
    assert answer.truncated
    assert answer.exit_code == 0


def test_one_bad_path_stops_no_other(backend: SandboxBackend) -> None:
    written = backend.upload_files(
        [
            ("relative", b"x"),
            ("/tmp", b"x"),
            ("/etc/hostname/below", b"x"),
            ("/tmp/nul\0", b"x"),
            ("/tmp/new/good", b"good"),
        ]
    )
    errors = ["invalid_path", "is_directory", "invalid_path", "invalid_path", None]
    assert [answer.error for answer in written] == errors
    read = backend.download_files(["relative", "/tmp", "/nope", "/tmp/new/good"])
    errors = ["invalid_path", "is_directory", "file_not_found", None]
    assert [answer.error for answer in read] == errors
    assert read[-1].content == b"good"


def test_a_sandbox_that_has_ended_is_no_missing_file() -> None:
    with Sandbox.create() as sandbox:
        backend = SandboxBackend(sandbox)
        assert backend.id == sandbox.sandbox_id
        sandbox.kill()
        with pytest.raises(ConflictError):
            backend.download_files(["/etc/hostname"])
        with pytest.raises(ConflictError):
            backend.upload_files([("/tmp/x", b"")])
        with pytest.raises(ConflictError):
            backend.execute("true")
