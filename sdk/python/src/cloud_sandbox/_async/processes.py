"""Processes that go on by themselves."""

from __future__ import annotations

import builtins
import codecs
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal

from cloud_sandbox._api import fields, processes
from cloud_sandbox._api.call import Call, Path
from cloud_sandbox.errors import CloudSandboxError, SandboxTimeoutError
from cloud_sandbox.models import (
    Execution,
    OutputPiece,
    ProcessInfo,
    ProcessOutput,
    TerminalSize,
    Truncated,
    WaitResult,
)

from . import _io
from .client import AsyncClient
from .following import AsyncFollower
from .terminal import AsyncTerminal

__all__ = ["AsyncOutput", "AsyncProcess", "AsyncProcesses"]

_YIELD_SECONDS = 10.0
_MAX_OUTPUT_BYTES = 1 << 20
_REPLAY_BYTES = 64 << 10


class AsyncProcesses:
    """The processes of a Sandbox: ``sandbox.processes``.

    A process outlives its client, the connection and the server; what it writes
    is kept in the Sandbox and read from any byte, 16 MiB of each process.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def start(
        self,
        command: str | Sequence[str] | None = None,
        *,
        name: str | None = None,
        user: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        stdin: str | bytes | None = None,
        keep_stdin: bool = False,
        pty: TerminalSize | None = None,
        shell: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncProcess:
        """Start a process in the background.

        It is started once, also when the call is tried again.

        Args:
            command: a line for bash, or a program and its arguments, which no
                shell interprets. With ``pty`` none is a login shell.
            name: stands for its ID, unique among processes that run: 1 to 63 of
                ``a-z``, ``0-9``, ``.``, ``_`` and ``-``.
            user: whose rights it has. Default: the Sandbox's user.
            cwd: where it starts. Default: the Sandbox's.
            env: environment variables for it alone.
            timeout_seconds: end it, with all it started, when it runs longer.
                Default: no limit.
            stdin: what it reads, up to 1 MiB, then the end of input.
            keep_stdin: no end of input: :meth:`AsyncProcess.write` gives more.
            pty: give it a terminal of this size; all it writes is standard
                output then.
            shell: a shell session: commands with the same one share a working
                directory, variables and functions, one after the other.
            idempotency_key: start it once for this key, also when another
                program asks. Default: a new one.

        Raises:
            InvalidRequestError: a value breaks a rule.
            ConflictError: the name is in use, the shell is busy, or the key was
                used for something else.
            ExhaustedError: too many processes run.
        """
        started = await self._client.call(
            processes.start(
                self._sandbox_id,
                command,
                name=name,
                user=user,
                cwd=cwd,
                env=env,
                timeout_seconds=timeout_seconds,
                stdin=stdin,
                keep_stdin=keep_stdin,
                pty=pty,
                shell=shell,
                yield_seconds=0,
                max_output_bytes=None,
                key=idempotency_key,
            )
        )
        return AsyncProcess(self._client, self._sandbox_id, started.info)

    async def run(
        self,
        command: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        stdin: str | bytes | None = None,
        shell: str | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        max_output_bytes: int = _MAX_OUTPUT_BYTES,
        idempotency_key: str | None = None,
    ) -> Execution:
        """Run a command to its end, through broken connections and restarts.

        Like ``run_command``, but without a limit of time, and in a shell session
        if wanted. Leaving early, by an exception, ends the process. Handlers may
        be coroutine functions.

        Args:
            command: as for :meth:`start`, and so are the others.
            user: whose rights it has.
            cwd: where it starts.
            env: environment variables for it alone.
            timeout_seconds: end it after this long. Default: no limit.
            stdin: what it reads.
            shell: a shell session.
            on_stdout: called with each piece of standard output as it comes.
            on_stderr: called with each piece of standard error as it comes.
            max_output_bytes: how much of each stream the execution keeps; the
                handlers get all. Default: 1 MiB. Of output that came too fast to
                be followed, see ``truncated``.
            idempotency_key: run it once for this key.

        Raises:
            InvalidRequestError: a value breaks a rule.
            ConflictError: the shell is busy, or the key was used for something
                else.
            ConnectionFailedError: the server was away for a minute.
        """
        streaming = on_stdout is not None or on_stderr is not None
        started = await self._client.call(
            processes.start(
                self._sandbox_id,
                command,
                name=None,
                user=user,
                cwd=cwd,
                env=env,
                timeout_seconds=timeout_seconds,
                stdin=stdin,
                keep_stdin=False,
                pty=None,
                shell=shell,
                yield_seconds=0 if streaming else _YIELD_SECONDS,
                max_output_bytes=min(max_output_bytes, _MAX_OUTPUT_BYTES),
                key=idempotency_key,
            )
        )
        kept = _Kept(max_output_bytes)
        kept.add("stdout", started.stdout)
        kept.add("stderr", started.stderr)
        if started.info.ended and started.offset >= started.info.output_end:
            return kept.execution(started.info)
        process = AsyncProcess(self._client, self._sandbox_id, started.info)
        try:
            return await process.drain(
                started.offset, kept, {"stdout": on_stdout, "stderr": on_stderr}
            )
        except BaseException:
            with _io.shielded():
                await process.kill_quietly()
            raise

    async def open_terminal(
        self,
        command: str | Sequence[str] | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        name: str | None = None,
        user: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncTerminal:
        """Start a process with a terminal and attach to it.

        Args:
            command: as for :meth:`start`. Default: a login shell.
            cols: width, in characters.
            rows: height, in characters.
            name: as for :meth:`start`, and so are the others.
            user: whose rights it has.
            cwd: where it starts.
            env: environment variables for it alone.
            timeout_seconds: end it after this long.
        """
        process = await self.start(
            command,
            name=name,
            user=user,
            cwd=cwd,
            env=env,
            timeout_seconds=timeout_seconds,
            pty=TerminalSize(cols, rows),
        )
        return await process.attach(0)

    async def list(
        self, state: Literal["running", "ended"] | None = None
    ) -> builtins.list[ProcessInfo]:
        """Return all that run and those that ended last, oldest first.

        Args:
            state: only these.
        """
        return await self._client.call(processes.every(self._sandbox_id, state))

    async def get(self, process_id: str) -> AsyncProcess:
        """Return a process by its ID or name.

        Raises:
            NotFoundError: there is none.
            ConflictError: the Sandbox went back to a state before it.
        """
        info = await self._client.call(processes.look(self._sandbox_id, process_id))
        return AsyncProcess(self._client, self._sandbox_id, info)


class AsyncProcess:
    """One process.

    Attributes:
        info: what was known of it last; see :meth:`refresh`.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str, info: ProcessInfo) -> None:
        self._client = client
        self._sandbox_id = sandbox_id
        self.info = info

    @property
    def process_id(self) -> str:
        """Names it in its Sandbox."""
        return self.info.process_id

    def __repr__(self) -> str:
        return f"AsyncProcess({self.process_id!r}, state={self.info.state!r})"

    async def refresh(self) -> ProcessInfo:
        """Return what it is now."""
        return await self._known(processes.look(self._sandbox_id, self.process_id))

    async def _known(self, call: Call[ProcessInfo]) -> ProcessInfo:
        self.info = await self._client.call(call)
        return self.info

    async def output(
        self, start: int = 0, stream: Literal["stdout", "stderr"] | None = None
    ) -> ProcessOutput:
        """Return what it has written until now.

        Args:
            start: the first byte, counted in both streams together; below 0,
                that many from the end.
            stream: only this one. Offsets stay those of both.
        """
        return await self._client.call(
            processes.output(self._sandbox_id, self.process_id, start, stream)
        )

    def follow(
        self, start: int = 0, stream: Literal["stdout", "stderr"] | None = None
    ) -> AsyncOutput:
        """Return what it writes, as it comes, until it has ended.

        When the connection breaks, it goes on where it was. ::

            async with process.follow() as output:
                async for piece in output:
                    print(piece.text, end="")

        Args:
            start: as for :meth:`output`.
            stream: as for :meth:`output`.
        """
        return AsyncOutput(self._client, self._sandbox_id, self, start, stream)

    async def wait(self, timeout_seconds: float | None = None) -> ProcessInfo:
        """Wait until it has ended, and return how.

        Args:
            timeout_seconds: wait no longer. Default: no limit.

        Raises:
            SandboxTimeoutError: it still runs.
        """
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            left = processes.MAX_WAIT_SECONDS
            if end is not None:
                left = min(left, end - time.monotonic())
                if left <= 0:
                    raise SandboxTimeoutError("the process still runs")
            if await self._wait("exit", max(left, 0.001)):
                return self.info

    async def wait_for_port(self, port: int, timeout_seconds: float = 60) -> WaitResult:
        """Wait until something listens at a TCP port on the loopback address.

        Args:
            port: the port.
            timeout_seconds: wait no longer, up to 3,600.

        Returns:
            Something false when the time was over, or the process had ended.
        """
        return await self._wait(f"port:{port}", timeout_seconds)

    async def wait_for_http(
        self, port: int, path: str = "/", timeout_seconds: float = 60
    ) -> WaitResult:
        """Wait until an HTTP request is answered with a status below 500.

        Args:
            port: where, on the loopback address.
            path: what is asked for.
            timeout_seconds: wait no longer, up to 3,600.

        Returns:
            Something false when the time was over, or the process had ended.
        """
        return await self._wait(f"http:{port}/{path.removeprefix('/')}", timeout_seconds)

    async def wait_for_log(self, pattern: str, timeout_seconds: float = 60) -> WaitResult:
        """Wait until a line of output matches; what is there already counts too.

        Args:
            pattern: a regular expression (RE2).
            timeout_seconds: wait no longer, up to 3,600.

        Returns:
            Something false when the time was over, or the process had ended.

        Raises:
            InvalidRequestError: the pattern cannot be read.
        """
        return await self._wait(f"log:{pattern}", timeout_seconds)

    async def _wait(self, what: str, timeout_seconds: float) -> WaitResult:
        call = processes.wait(self._sandbox_id, self.process_id, what, timeout_seconds)
        result = await self._client.call(call)
        self.info = result.process
        return result

    async def write(self, data: str | bytes, *, eof: bool = False) -> None:
        """Let it read this, and return when all of it is with the process.

        Args:
            data: up to 1 MiB; str is sent as UTF-8.
            eof: end its input afterwards; a terminal is sent Ctrl-D.

        Raises:
            ConflictError: it has ended, or its input is closed.
            SandboxTimeoutError: it did not read for 30 s; the message says how
                much it was given.
            ConnectionFailedError: the connection broke; it may have been given
                some of it.
        """
        await self._client.call(processes.write(self._sandbox_id, self.process_id, data, eof=eof))

    async def close_stdin(self) -> None:
        """End its input; a terminal is sent Ctrl-D."""
        await self.write(b"", eof=True)

    async def signal(self, name: str | int) -> ProcessInfo:
        """Send a signal to it and its group.

        INT, QUIT and TSTP for a process with a terminal go to what runs in its
        foreground, as from the keyboard.

        Args:
            name: such as ``"INT"``, ``"SIGTERM"`` or 15.

        Raises:
            InvalidRequestError: the signal does not exist.
        """
        return await self._known(processes.signal(self._sandbox_id, self.process_id, name))

    async def kill(self) -> ProcessInfo:
        """End it and everything it started: SIGTERM, and SIGKILL a second later.

        One that has ended is left as it is; its output stays.
        """
        return await self._known(processes.end(self._sandbox_id, self.process_id))

    async def kill_quietly(self) -> None:
        """End it where something else went wrong; for this package's use."""
        with suppress(CloudSandboxError):  # what went wrong matters more
            await self.kill()

    async def resize(self, cols: int, rows: int) -> ProcessInfo:
        """Change the size of its terminal, in characters.

        Raises:
            ConflictError: it has none.
        """
        size = TerminalSize(cols, rows)
        return await self._known(processes.resize(self._sandbox_id, self.process_id, size))

    async def attach(self, start: int = -_REPLAY_BYTES) -> AsyncTerminal:
        """Take part in what it shows and reads.

        Args:
            start: begin with this byte of output; below 0, that many from the
                end.
        """
        return await AsyncTerminal.open(self._client, self._sandbox_id, self.process_id, start)

    async def drain(
        self,
        start: int,
        kept: _Kept,
        handlers: Mapping[str, Callable[[str], object] | None],
    ) -> Execution:
        """Follow it to its end; for this package's use."""
        async with self.follow(start) as output:
            async for piece in output:
                if piece.stream == "dropped":
                    kept.lose(piece.next_offset - piece.offset)
                kept.add(piece.stream, piece.data)
                if (handler := handlers.get(piece.stream)) is not None:
                    await _io.tell(handler, piece.text)
        return kept.execution(self.info)


class AsyncOutput:
    """What a process writes, as it comes; see :meth:`AsyncProcess.follow`."""

    def __init__(
        self,
        client: AsyncClient,
        sandbox_id: str,
        process: AsyncProcess,
        start: int,
        stream: str | None,
    ) -> None:
        self._process = process
        self._sandbox_id = sandbox_id
        self._stream = stream
        self._offset = start
        self._ended = False
        self._follower = AsyncFollower(client, self._ask)

    def _ask(self) -> Call[None]:
        return processes.follow(
            self._sandbox_id, self._process.process_id, self._offset, self._stream
        )

    @property
    def offset(self) -> int:
        """Where it is: read on from here."""
        return self._offset

    def __aiter__(self) -> AsyncOutput:
        return self

    async def __anext__(self) -> OutputPiece:
        while not self._ended:
            event = await self._follower.next()
            if event is None:
                break
            if event.name in ("start", "end"):
                self._process.info = processes.info_of(fields.parse_object(event.data))
                self._ended = event.name == "end"
                continue
            piece = processes.piece_of(event)
            self._offset = piece.next_offset
            return piece
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop following; the process goes on."""
        await self._follower.aclose()

    async def __aenter__(self) -> AsyncOutput:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class _Kept:
    """The beginning of each stream, and how much more there was."""

    def __init__(self, max_bytes: int) -> None:
        self._left = {"stdout": max_bytes, "stderr": max_bytes}
        self._data = {"stdout": bytearray(), "stderr": bytearray()}
        self._dropped = {"stdout": 0, "stderr": 0}

    def add(self, stream: str, data: bytes) -> None:
        """Keep what there is room for."""
        if stream not in self._left or not data:
            return
        kept = data if len(data) <= self._left[stream] else _whole(data[: self._left[stream]])
        self._data[stream] += kept
        # What came after a cut is not kept, however small it is.
        self._left[stream] = self._left[stream] - len(kept) if len(kept) == len(data) else 0
        self._dropped[stream] += len(data) - len(kept)

    def lose(self, size: int) -> None:
        """Count bytes that are kept no more; of which stream is not known."""
        self._dropped["stdout"] += size

    def execution(self, info: ProcessInfo) -> Execution:
        """Return what became of the process."""
        ran = 0.0
        if info.started_at is not None and info.ended_at is not None:
            ran = (info.ended_at - info.started_at).total_seconds() * 1000
        return Execution(
            status=info.status,
            stdout=self._data["stdout"].decode(errors="replace"),
            stderr=self._data["stderr"].decode(errors="replace"),
            stdout_bytes=bytes(self._data["stdout"]),
            stderr_bytes=bytes(self._data["stderr"]),
            process_id=info.process_id,
            next_offset=info.output_end,
            exit_code=info.exit_code,
            error=info.error,
            duration_ms=ran,
            truncated=Truncated(self._dropped["stdout"], self._dropped["stderr"]),
        )


def _whole(data: bytes) -> bytes:
    """Return data without the beginning of a character that was cut at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    decoder.decode(data)
    return data[: len(data) - len(decoder.getstate()[0])]
