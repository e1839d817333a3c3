"""The Sandbox as a Python object."""

from __future__ import annotations

import builtins
import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Literal, overload

from . import _sse, _wire
from ._client import Client
from ._wire import Data, Path
from .errors import CloudSandboxError, ConflictError, ConnectionFailedError, NotFoundError
from .models import Execution, FileEntry, FileList, Resources, SandboxInfo

__all__ = ["FileStream", "OutputHandler", "Sandbox"]

OutputHandler = Callable[[str], object]

_PAGE_SIZE = 100  # the largest that the server gives

_log = logging.getLogger("cloud_sandbox")


class Sandbox:
    """One isolated machine that runs code and keeps files.

    Make one with :meth:`create` or find one with :meth:`connect`. In a ``with``
    block it is ended when the block is left, also by an exception; without one,
    call :meth:`kill`, or the server ends it at its deadline.

    Any method that talks to the server may raise a
    :class:`~cloud_sandbox.CloudSandboxError`: ``NotFoundError`` when the
    Sandbox has ended and is forgotten, ``ConflictError`` when it does not run,
    ``AuthenticationError``, ``ExhaustedError``, ``UnavailableError``,
    ``ConnectionFailedError``, ``SandboxTimeoutError``. Methods name only what
    they add.

    Safe for use by several threads.
    """

    def __init__(self, client: Client, sandbox_id: str, *, owns_client: bool) -> None:
        self._client = client
        self._owns_client = owns_client
        self._sandbox_id = sandbox_id

    @classmethod
    def create(
        cls,
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        template: str | None = None,
        name: str | None = None,
        timeout_seconds: float | None = None,
        network: Literal["public", "none"] | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        resources: Resources | Mapping[str, float] | None = None,
        *,
        user: str | None = None,
        cwd: Path | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Start a Sandbox and return once it is ready.

        Args:
            base_url: address of the server. Default: ``CLOUD_SANDBOX_URL``,
                then ``http://localhost:8080``.
            user_id: in dev mode, whom to be.
            api_key: a key or bearer token. Default: ``CLOUD_SANDBOX_API_KEY``.
            token: a bearer token; another word for ``api_key``.
            template: what it is started from. Default: ``"base"``.
            name: a name to find it by, unique among your living Sandboxes.
            timeout_seconds: how long it may live, up to 86,400. Default: 1,800.
            network: ``"public"`` lets it connect to public addresses, ``"none"``
                to nothing. Default: as the operator decided.
            env: environment of everything that runs in it.
            metadata: pairs for your own use.
            resources: limits. Default: 1 CPU, 512 MiB of memory, 4 GiB of
                disk, 512 pids. A field that is not given keeps its default.
            user: whose processes they are inside. Default: ``"user"``.
            cwd: working directory of processes. Default: ``/workspace``.
            client: a connection to share; it replaces the first four arguments
                and is not closed with the Sandbox.

        Raises:
            InvalidRequestError: a value breaks a rule.
            NotFoundError: there is no such Template.
            ConflictError: the name is in use.
            ExhaustedError: a quota or the server's capacity is used up.
            ValueError: the address or the credentials cannot work.
        """
        request = _wire.create_session(
            template=template,
            name=name,
            timeout_seconds=timeout_seconds,
            network=network,
            env=env,
            metadata=metadata,
            resources=resources,
            user=user,
            cwd=cwd,
        )
        client, owned = _client_for(client, base_url, user_id, api_key, token)
        with _closing_on_error(client, owned):
            info = _wire.decode_session(client.call(request))
        return cls(client, info.sandbox_id, owns_client=owned)

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        *,
        client: Client | None = None,
    ) -> Sandbox:
        """Return a Sandbox that runs already.

        A ``with`` block around it ends it too. To leave it running, call
        :meth:`close` instead.

        Args:
            sandbox_id: its ID or name.
            base_url: as for :meth:`create`.
            user_id: as for :meth:`create`.
            api_key: as for :meth:`create`.
            token: as for :meth:`create`.
            client: as for :meth:`create`.

        Raises:
            NotFoundError: there is none, it has ended, or it is not yours.
        """
        request = _wire.get_session(sandbox_id)
        client, owned = _client_for(client, base_url, user_id, api_key, token)
        with _closing_on_error(client, owned):
            info = _wire.decode_session(client.call(request))
            if _is_over(info):
                raise NotFoundError(f"the sandbox {info.sandbox_id} has ended")
        return cls(client, info.sandbox_id, owns_client=owned)

    @staticmethod
    def list(
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        *,
        states: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        client: Client | None = None,
    ) -> builtins.list[SandboxInfo]:
        """Return your Sandboxes, newest first.

        Args:
            base_url: as for :meth:`create`.
            user_id: as for :meth:`create`.
            api_key: as for :meth:`create`.
            token: as for :meth:`create`.
            states: only those in one of these states. Default: all that have not
                ended.
            metadata: only those whose metadata has every pair.
            limit: return at most this many. Default: all.
            client: as for :meth:`create`.
        """
        client, owned = _client_for(client, base_url, user_id, api_key, token)
        try:
            return list(_all_sessions(client, limit, states, metadata))
        finally:
            if owned:
                client.close()

    @property
    def sandbox_id(self) -> str:
        """Its ID for life. A session has the same."""
        return self._sandbox_id

    @property
    def session_id(self) -> str:
        """The same as :attr:`sandbox_id`."""
        return self._sandbox_id

    def __repr__(self) -> str:
        return f"Sandbox({self._sandbox_id!r})"

    # Running.

    def run_code(
        self,
        code: str,
        language: str = "python",
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        on_stdout: OutputHandler | None = None,
        on_stderr: OutputHandler | None = None,
        *,
        user: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Execution:
        """Run code and return what became of it, also when it failed.

        Every call is a new process; only files last from one to the next.

        Args:
            code: source text.
            language: ``"python"``, ``"javascript"`` or ``"bash"``.
            timeout_seconds: end it after this long. Default: 60.
            env: environment variables for it alone.
            cwd: its working directory. Default: ``/workspace``.
            stdin: its standard input. Default: empty.
            on_stdout: called with each piece of standard output as it comes.
            on_stderr: called with each piece of standard error as it comes.
                Both get all of the output, also what the result has to cut. An
                exception from either ends the execution and is raised.
            user: whose process it is inside. Default: the Sandbox's user.
            max_output_bytes: how much of each stream the result keeps, up to
                16 MiB. Default: 1 MiB.

        Raises:
            InvalidRequestError: an unknown language, or a value out of bounds.
            TooLargeError: more code or input than the server takes.
            ConnectionFailedError: the connection broke; the code may have run.
        """
        stream = on_stdout is not None or on_stderr is not None
        request = _wire.execute(
            self._sandbox_id,
            code,
            language=language,
            timeout_seconds=timeout_seconds,
            env=env,
            cwd=cwd,
            stdin=stdin,
            user=user,
            max_output_bytes=max_output_bytes,
            stream=stream,
        )
        if not stream:
            return _wire.decode_execution(self._client.call(request))
        return self._run_streaming(request, {"stdout": on_stdout, "stderr": on_stderr})

    def run_command(
        self,
        command: str | Sequence[str],
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | None = None,
        on_stdout: OutputHandler | None = None,
        on_stderr: OutputHandler | None = None,
        *,
        user: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Execution:
        """Run a shell command.

        Args:
            command: a line for bash, or a program and its arguments, which no
                shell then interprets.
            timeout_seconds: as for :meth:`run_code`, and so are the others.
            env: environment variables for it alone.
            cwd: its working directory.
            stdin: its standard input.
            on_stdout: called with each piece of standard output.
            on_stderr: called with each piece of standard error.
            user: whose process it is inside.
            max_output_bytes: how much of each stream the result keeps.
        """
        return self.run_code(
            command if isinstance(command, str) else shlex.join(command),
            language="bash",
            timeout_seconds=timeout_seconds,
            env=env,
            cwd=cwd,
            stdin=stdin,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            user=user,
            max_output_bytes=max_output_bytes,
        )

    def _run_streaming(
        self, request: _wire.Request, handlers: Mapping[str, OutputHandler | None]
    ) -> Execution:
        decoder = _sse.Decoder()
        execution: Execution | None = None
        with self._client.stream(request) as pieces:
            for piece in pieces:  # to the very end, so that the connection can be used again
                for event in decoder.feed(piece):
                    if event.name == "result":
                        execution = _wire.decode_execution(event.data)
                    elif event.name == "error":
                        raise _wire.decode_error_event(event)
                    elif (handler := handlers.get(event.name)) is not None:
                        handler(_wire.decode_output(event))
        if execution is None:
            raise ConnectionFailedError("the stream ended before the execution's result")
        return execution

    # Files.

    def write_file(self, path: Path, data: Data) -> FileEntry:
        """Write a file; folders above it are made, an old file is replaced.

        Args:
            path: where in the Sandbox; not absolute means below ``/workspace``,
                as for all paths.
            data: str (written as UTF-8), bytes, an open file, or an iterable of
                str or bytes. Files and iterables are sent as they are read, in
                constant memory.

        Raises:
            ConflictError: there is a folder at this path.
            TooLargeError: the server does not take that much.
        """
        request = _wire.write_file(self._sandbox_id, path, data)
        return _wire.decode_entry(self._client.call(request))

    @overload
    def read_file(self, path: Path, format: Literal["text"] = "text") -> str: ...
    @overload
    def read_file(self, path: Path, format: Literal["bytes"]) -> bytes: ...
    @overload
    def read_file(self, path: Path, format: Literal["stream"]) -> FileStream: ...

    def read_file(
        self,
        path: Path,
        format: Literal["text", "bytes", "stream"] = "text",  # noqa: A002 - says what it is
    ) -> str | bytes | FileStream:
        """Read a file.

        Args:
            path: where in the Sandbox.
            format: ``"text"`` for str, decoded as UTF-8; ``"bytes"``; or
                ``"stream"`` for a :class:`FileStream` that holds only a piece
                at a time.

        Raises:
            NotFoundError: there is no such file.
            InvalidRequestError: it is a folder.
            UnicodeDecodeError: it is not UTF-8 text.
        """
        request = _wire.read_file(self._sandbox_id, path)
        if format == "stream":
            return FileStream(self._client.stream(request))
        if format not in ("text", "bytes"):
            raise ValueError(f'format must be "text", "bytes" or "stream", not {format!r}')
        content = self._client.call(request)
        return content if format == "bytes" else content.decode()

    def list_files(self, path: Path = "/workspace", depth: int = 1) -> FileList:
        """Return what is in a folder.

        Args:
            path: the folder.
            depth: how many levels to go down; 1 leaves out what is in folders
                below it. At most 32.

        Raises:
            NotFoundError: there is no such folder.
        """
        request = _wire.list_files(self._sandbox_id, path, depth)
        return _wire.decode_entries(self._client.call(request))

    def stat(self, path: Path) -> FileEntry:
        """Return what is known of a file, a folder, or a link itself.

        Raises:
            NotFoundError: there is nothing at this path.
        """
        return _wire.decode_entry(self._client.call(_wire.stat_file(self._sandbox_id, path)))

    def exists(self, path: Path) -> bool:
        """Return whether there is something at a path.

        Raises:
            NotFoundError: the Sandbox itself is gone.
        """
        try:
            self.stat(path)
        except NotFoundError:
            if _is_over(self.info()):
                raise
            return False
        return True

    def make_dir(self, path: Path, exist_ok: bool = False) -> FileEntry:
        """Make a folder and those above it.

        Args:
            path: where in the Sandbox.
            exist_ok: a folder that is there already is as good.

        Raises:
            ConflictError: there is something at this path.
        """
        try:
            return _wire.decode_entry(self._client.call(_wire.make_dir(self._sandbox_id, path)))
        except ConflictError:
            if exist_ok and (entry := self.stat(path)).is_dir:
                return entry
            raise

    def move(self, source: Path, destination: Path) -> FileEntry:
        """Move or rename a file or a folder.

        Raises:
            NotFoundError: there is nothing at ``source``.
        """
        request = _wire.move_file(self._sandbox_id, source, destination)
        return _wire.decode_entry(self._client.call(request))

    def remove(self, path: Path, recursive: bool = False) -> None:
        """Delete a file, a link or a folder.

        Args:
            path: what to delete.
            recursive: delete a folder with all that is in it.

        Raises:
            NotFoundError: there is nothing at this path.
            ConflictError: the folder is not empty, and not ``recursive``.
        """
        self._client.call(_wire.delete_file(self._sandbox_id, path, recursive=recursive))

    def delete_file(self, path: Path) -> None:
        """Delete one file: :meth:`remove` without ``recursive``."""
        self.remove(path)

    # Its life.

    def info(self) -> SandboxInfo:
        """Return what the Sandbox is now; for some days also after its end.

        Raises:
            NotFoundError: it is forgotten.
        """
        return _wire.decode_session(self._client.call(_wire.get_session(self._sandbox_id)))

    def set_timeout(self, seconds: float) -> SandboxInfo:
        """Move the deadline to this many seconds from now, nearer or farther.

        Raises:
            InvalidRequestError: not above 0, or more than 86,400.
        """
        return _wire.decode_session(self._client.call(_wire.set_timeout(self._sandbox_id, seconds)))

    def kill(self) -> bool:
        """End the Sandbox now: its processes stop and its files are gone.

        Returns:
            False when it had ended already.
        """
        try:
            self._client.call(_wire.delete_session(self._sandbox_id))
        except NotFoundError:
            return False
        return True

    def close(self) -> None:
        """Close the connection and leave the Sandbox running until its deadline.

        A shared ``client`` stays open.
        """
        if self._owns_client:
            self._client.close()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        try:
            self.kill()
        except CloudSandboxError as err:
            if exc is None:
                raise
            # What went wrong in the block matters more.
            _log.warning("sandbox %s was not ended: %s", self._sandbox_id, err)
        finally:
            self.close()


class FileStream:
    """The bytes of a file, piece by piece.

    Iterate over it, inside a ``with`` block or to the end; leaving earlier
    closes the connection. It can be read once.
    """

    def __init__(self, opening: AbstractContextManager[Iterator[bytes]]) -> None:
        self._opening = opening
        self._pieces = opening.__enter__()
        self._closed = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading; more than once is the same as once."""
        if not self._closed:
            self._closed = True
            self._opening.__exit__(None, None, None)

    def __enter__(self) -> FileStream:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _client_for(
    client: Client | None,
    base_url: str | None,
    user_id: str | None,
    api_key: str | None,
    token: str | None,
) -> tuple[Client, bool]:
    """Return the connection to use, and whether it was made here."""
    if client is not None:
        if any(value is not None for value in (base_url, user_id, api_key, token)):
            raise ValueError("pass client, or base_url, user_id, api_key and token, not both")
        return client, False
    return Client(base_url, user_id=user_id, api_key=api_key, token=token), True


@contextmanager
def _closing_on_error(client: Client, owned: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if owned:
            client.close()
        raise


def _all_sessions(
    client: Client,
    limit: int | None,
    states: Sequence[str] | None,
    metadata: Mapping[str, str] | None,
) -> Iterator[SandboxInfo]:
    """Read page after page, up to limit Sandboxes."""
    cursor: str | None = None
    left = limit
    while left is None or left > 0:
        size = None if left is None else min(left, _PAGE_SIZE)
        request = _wire.list_sessions(size, cursor, states, metadata)
        page, cursor = _wire.decode_sessions(client.call(request))
        yield from page[:left]
        left = None if left is None else left - len(page)
        if not cursor:
            return


def _is_over(info: SandboxInfo) -> bool:
    return info.state in ("stopping", "ended")
