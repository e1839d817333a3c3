"""The Sandbox as a Python object."""

from __future__ import annotations

import builtins
import logging
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Literal, TypeVar, overload

from cloud_sandbox._api import executions, fields, sessions, snapshots
from cloud_sandbox._api.call import Call, Path
from cloud_sandbox.errors import (
    CloudSandboxError,
    ConnectionFailedError,
    ForkError,
    NotFoundError,
    UnavailableError,
)
from cloud_sandbox.models import (
    ContextInfo,
    Execution,
    FileEntry,
    FileList,
    OpenPort,
    PortAccess,
    PortLink,
    Resources,
    Result,
    SandboxInfo,
    SnapshotInfo,
    VolumeInfo,
)

from . import _io
from ._io import Data
from .client import AsyncClient, client_for
from .contexts import AsyncContexts, context_id
from .files import AsyncFiles
from .following import AsyncFollower, AsyncPatience
from .git import AsyncGit
from .life import is_over, look
from .processes import AsyncProcesses
from .snapshots import snapshot_id
from .streams import AsyncByteStream

__all__ = ["AsyncSandbox", "OutputHandler", "ResultHandler"]

T = TypeVar("T")

OutputHandler = Callable[[str], object]
ResultHandler = Callable[[Result], object]

_PAGE_SIZE = 100  # the largest that the server gives

_log = logging.getLogger("cloud_sandbox")


class AsyncSandbox:
    """One isolated machine that runs code and keeps files.

    Make one with :meth:`create` or find one with :meth:`connect`. In an
    ``async with`` block it is ended when the block is left, also by an exception;
    without one, call :meth:`kill`, or the server ends it at its deadline.

    Any method that talks to the server may raise a
    :class:`~cloud_sandbox.CloudSandboxError`: ``NotFoundError`` when the
    Sandbox has ended and is forgotten, ``ConflictError`` when it does not run,
    ``AuthenticationError``, ``ExhaustedError``, ``UnavailableError``,
    ``ConnectionFailedError``, ``SandboxTimeoutError``. Methods name only what
    they add.

    Safe for concurrent use by several tasks of one event loop.

    Attributes:
        files: its files.
        contexts: its interpreters that keep their state.
        processes: its processes, shells and terminals.
        git: its repositories.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str, *, owns_client: bool) -> None:
        self._client = client
        self._owns_client = owns_client
        self._sandbox_id = sandbox_id
        self._ends_with_block = False  # unless a block is entered that says so
        self.files = AsyncFiles(client, sandbox_id)
        self.contexts = AsyncContexts(client, sandbox_id)
        self.processes = AsyncProcesses(client, sandbox_id)
        self.git = AsyncGit(client, sandbox_id)

    @classmethod
    async def create(
        cls,
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        template: str | None = None,
        name: str | None = None,
        timeout_seconds: float | None = None,
        network: Literal["public", "none"] | Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        resources: Resources | Mapping[str, float] | None = None,
        *,
        secrets: Sequence[Mapping[str, str]] | None = None,
        volumes: Mapping[str, VolumeInfo | str] | None = None,
        ports: Mapping[str, object] | None = None,
        idle_timeout_seconds: float | None = None,
        on_timeout: Literal["pause", "pause_files", "end"] | None = None,
        auto_resume: bool | None = None,
        snapshot: SnapshotInfo | str | None = None,
        checkpoint_every_seconds: float | None = None,
        user: str | None = None,
        cwd: Path | None = None,
        if_exists: Literal["fail", "return"] | None = None,
        idempotency_key: str | None = None,
        client: AsyncClient | None = None,
    ) -> AsyncSandbox:
        """Start a Sandbox and return once it is ready.

        Args:
            base_url: address of the server. Default: ``CLOUD_SANDBOX_URL``,
                then ``http://localhost:8080``.
            user_id: in dev mode, whom to be.
            api_key: a key or bearer token. Default: ``CLOUD_SANDBOX_API_KEY``.
            token: a bearer token; another word for ``api_key``.
            template: what it is started from. Default: ``"base"``.
            name: a name to find it by, unique among your living Sandboxes.
            timeout_seconds: how long it may run, up to 86,400. Default: 1,800.
            network: ``"public"`` lets it connect to public addresses, ``"none"``
                to nothing; or rules, such as ``{"mode": "none", "allow":
                ["pypi.org", "*.pythonhosted.org"]}``. Default: as the operator
                decided.
            env: environment of everything that runs in it.
            metadata: pairs for your own use.
            resources: limits. Default: 1 CPU, 512 MiB of memory, 4 GiB of
                disk, 512 pids. A field that is not given keeps its default.
            secrets: which requests get which secrets, each as ``{"name": ...,
                "host": "api.example.com", "header": "Authorization", "format":
                "Bearer {value}"}``: HTTPS requests to the host get the header on
                their way, and the value never enters the Sandbox.
            volumes: what is mounted where, as ``{"/data": "datasets"}``: paths,
                and volumes or their names or IDs. They are those of
                ``client.volumes``, and cannot change while it lives. A Snapshot
                has its own.
            ports: who reaches its ports: ``{"private": True}`` asks for a token,
                as :meth:`port_link` makes it; ``"host"`` is what services see as
                the host of requests, such as ``"localhost:${PORT}"``, and
                ``"tls"`` lists ports that speak TLS inside. Default: whoever
                knows its ID.
            idle_timeout_seconds: do what ``on_timeout`` says when nobody has used
                it for so long, at least 1. Default: never.
            on_timeout: at the end of its time save all of it (``"pause"``), save
                its files only (``"pause_files"``), or end it (``"end"``). Default:
                pause; for one that a ``with`` block is entered with, end, so that
                nothing is left of a program that died in the block.
            auto_resume: a call that reaches into it resumes it when it is paused.
                Default: True.
            snapshot: start from this Snapshot, its ID or its name, instead of a
                Template, with the resources that the Snapshot has.
            checkpoint_every_seconds: save it so often while it runs, 10 to
                86,400, so that it goes on from there should its machine fail.
                Default: never.
            user: whose processes they are inside. Default: ``"user"``.
            cwd: working directory of processes. Default: ``/workspace``.
            if_exists: with ``"return"``, a living Sandbox of yours with this
                name is the answer, whatever else is asked for; with ``"fail"``,
                the default, that is a conflict.
            idempotency_key: for a day the answer is the same Sandbox for this
                key, also when another program asks. Default: a new key, so
                that a call that is tried again makes one Sandbox.
            client: a connection to share; it replaces the first four arguments
                and is not closed with the Sandbox.

        Raises:
            InvalidRequestError: a value breaks a rule.
            NotFoundError: the Template or Snapshot does not exist.
            ConflictError: the name is in use, or the key was used for something
                else.
            ExhaustedError: a quota or the server's capacity is used up.
            ValueError: the address or the credentials cannot work.
        """
        call = sessions.create(
            template=template,
            name=name,
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            network=network,
            ports=ports,
            secrets=secrets,
            volumes=volumes,
            env=env,
            metadata=metadata,
            resources=resources,
            user=user,
            cwd=cwd,
            if_exists=if_exists,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            snapshot_id=None if snapshot is None else snapshot_id(snapshot),
            checkpoint_every_seconds=checkpoint_every_seconds,
            key=idempotency_key,
        )
        client, owned = client_for(client, base_url, user_id, api_key, token)
        async with _closing_on_error(client, owned):
            info = await client.call(call)
        made = cls(client, info.sandbox_id, owns_client=owned)
        made._ends_with_block = on_timeout is None and if_exists != "return"
        return made

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        *,
        client: AsyncClient | None = None,
    ) -> AsyncSandbox:
        """Return a Sandbox that runs already.

        An ``async with`` block around it ends it too. To leave it running, call
        :meth:`aclose` instead.

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
        call = sessions.look(sandbox_id)
        client, owned = client_for(client, base_url, user_id, api_key, token)
        async with _closing_on_error(client, owned):
            info = await client.call(call)
            if is_over(info):
                raise NotFoundError(f"the sandbox {info.sandbox_id} has ended")
        return cls(client, info.sandbox_id, owns_client=owned)

    @staticmethod
    async def list(
        base_url: str | None = None,
        user_id: str | None = None,
        api_key: str | None = None,
        token: str | None = None,
        *,
        states: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        limit: int | None = None,
        client: AsyncClient | None = None,
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
        client, owned = client_for(client, base_url, user_id, api_key, token)
        try:
            return [info async for info in _all_sessions(client, limit, states, metadata)]
        finally:
            if owned:
                await client.aclose()

    @property
    def sandbox_id(self) -> str:
        """Its ID for life. A session has the same."""
        return self._sandbox_id

    @property
    def session_id(self) -> str:
        """The same as :attr:`sandbox_id`."""
        return self._sandbox_id

    def __repr__(self) -> str:
        return f"AsyncSandbox({self._sandbox_id!r})"

    # Running.

    async def run_code(
        self,
        code: str,
        language: str | None = None,
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OutputHandler | None = None,
        on_stderr: OutputHandler | None = None,
        *,
        on_result: ResultHandler | None = None,
        context: ContextInfo | str | None = None,
        user: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Execution:
        """Run code to its end and return what became of it, also when it failed.

        Python, JavaScript and TypeScript run in a context that keeps its state:
        the variables, imports and working directory of one execution are there
        for the next; so do bash, R and Java in a context that was made for them.
        Otherwise every call is a new program. Handlers may be
        coroutine functions.

        The code goes on through broken connections and ends of the server, and so
        does this call. An exception, also one that cancels it, ends the code. When
        the Sandbox is paused meanwhile, the status is ``"paused"`` and the code goes
        on when it resumes; follow it with ``processes.get(execution.process_id)``.

        Args:
            code: source text.
            language: such as ``"python"``, ``"javascript"``, ``"typescript"`` or
                ``"bash"``. Default: ``"python"``, or the context's.
            timeout_seconds: end it after this long. Default: 60.
            env: environment variables for it alone.
            cwd: its working directory. Default: ``/workspace``, or where the
                context is.
            stdin: its standard input. Default: empty.
            on_stdout: called with each piece of standard output as it comes.
            on_stderr: called with each piece of standard error as it comes.
                Both get all of the output, also what the execution has to cut, as
                text: see ``stdout_bytes`` of the execution for what is not.
                An exception from a handler ends the execution and is raised.
            on_result: called with each rich result as it comes.
            context: where it runs, or its ID. Default: the default context.
            user: whose process it is inside. Default: the Sandbox's user.
            max_output_bytes: how much of each stream the execution keeps, up to
                16 MiB. Default: 1 MiB.

        Raises:
            InvalidRequestError: an unknown language, or a value out of bounds.
            NotFoundError: the context does not exist.
            TooLargeError: more code or input than the server takes.
            ConnectionFailedError: the server could not be reached, or was away for
                a minute; then the code may have run, or run on.
        """
        stream = any(handler is not None for handler in (on_stdout, on_stderr, on_result))
        call = executions.execute(
            self._sandbox_id,
            code,
            language=language or ("python" if context is None else None),
            context_id=None if context is None else context_id(context),
            timeout_seconds=timeout_seconds,
            env=env,
            cwd=cwd,
            stdin=stdin,
            user=user,
            max_output_bytes=max_output_bytes,
            stream=stream,
        )
        try:
            if not stream:
                return await self._patiently(
                    lambda sent: self._client.call(executions.again(call) if sent else call)
                )
            return await self._run_streaming(
                call, {"stdout": on_stdout, "stderr": on_stderr}, on_result
            )
        except CloudSandboxError:
            raise  # it did not begin, has ended, or cannot be reached
        except BaseException:
            with _io.shielded(), suppress(CloudSandboxError):  # what went wrong matters more
                await self._client.call(executions.end(self._sandbox_id, call))
            raise

    async def _patiently(self, do: Callable[[bool], Awaitable[T]]) -> T:
        """Do it again while a server that was asked is away; do is told of that."""
        patience, sent = AsyncPatience(), False
        while True:
            try:
                return await do(sent)
            except (ConnectionFailedError, UnavailableError) as err:  # noqa: PERF203
                sent = sent or (isinstance(err, ConnectionFailedError) and err.sent)
                if not sent or not self._client.retries:
                    raise
                await patience.wait(err)

    async def run_command(
        self,
        command: str | Sequence[str],
        timeout_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OutputHandler | None = None,
        on_stderr: OutputHandler | None = None,
        *,
        user: str | None = None,
        max_output_bytes: int | None = None,
    ) -> Execution:
        """Run a shell command to its end.

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
            max_output_bytes: how much of each stream the execution keeps.
        """
        return await self.run_code(
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

    async def _run_streaming(
        self,
        call: Call[Execution],
        on_output: Mapping[str, OutputHandler | None],
        on_result: ResultHandler | None,
    ) -> Execution:
        ask = call
        follower = AsyncFollower(self._client, lambda: ask)

        async def begin(sent: bool) -> None:
            nonlocal ask
            ask = executions.again(call) if sent else call
            await follower.open()
            ask = executions.again(call)

        try:
            await self._patiently(begin)
            while (event := await follower.next()) is not None:
                if event.name == "result":
                    await follower.finish()
                    return executions.execution_of(fields.parse_object(event.data))
                if event.name == "display" and on_result is not None:
                    await _io.tell(on_result, executions.result_of(event))
                elif (handler := on_output.get(event.name)) is not None:
                    await _io.tell(handler, executions.output_of(event))
                if event.id:
                    ask = executions.again(call, event.id)
        finally:
            await follower.aclose()
        raise ConnectionFailedError("the stream ended before the execution's result")

    # The everyday part of `files`.

    async def write_file(self, path: Path, data: Data) -> FileEntry:
        """Write a file: short for ``files.write``."""
        return await self.files.write(path, data)

    @overload
    async def read_file(self, path: Path, format: Literal["text"] = "text") -> str: ...
    @overload
    async def read_file(self, path: Path, format: Literal["bytes"]) -> bytes: ...
    @overload
    async def read_file(self, path: Path, format: Literal["stream"]) -> AsyncByteStream: ...

    async def read_file(
        self, path: Path, format: Literal["text", "bytes", "stream"] = "text"
    ) -> str | bytes | AsyncByteStream:
        """Read a file: short for ``files.read``."""
        return await self.files.read(path, format)

    async def list_files(self, path: Path = "/workspace", depth: int = 1) -> FileList:
        """Return what is in a folder: short for ``files.list``."""
        return await self.files.list(path, depth)

    async def delete_file(self, path: Path) -> None:
        """Delete one file: ``files.remove`` without ``recursive``."""
        await self.files.remove(path)

    # Its life, and what it is saved in.

    async def info(self) -> SandboxInfo:
        """Return what the Sandbox is now; for some days also after its end.

        Raises:
            NotFoundError: it is forgotten.
        """
        return await look(self._client, self._sandbox_id)

    async def update(
        self,
        *,
        name: str | None = None,
        timeout_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        on_timeout: Literal["pause", "pause_files", "end"] | None = None,
        auto_resume: bool | None = None,
        checkpoint_every_seconds: float | None = None,
        metadata: Mapping[str, str | None] | None = None,
        env: Mapping[str, str | None] | None = None,
        network: Literal["public", "none"] | Mapping[str, object] | None = None,
        ports: Mapping[str, object] | None = None,
        secrets: Sequence[Mapping[str, str]] | None = None,
        resources: Resources | Mapping[str, float] | None = None,
        user: str | None = None,
        cwd: Path | None = None,
    ) -> SandboxInfo:
        """Change it, running or paused; what is not given stays. All of it happens, or none.

        Args:
            name: another name; ``""`` for none.
            timeout_seconds: move the deadline to so long from now.
            idle_timeout_seconds: its time ends too when nobody has used it for so
                long; 0 for never.
            on_timeout: what the end of its time does, as for :meth:`create`.
            auto_resume: as for :meth:`create`.
            checkpoint_every_seconds: save it so often while it runs; 0 for
                never.
            metadata: pairs to set; a value of ``None`` removes one.
            env: environment variables to set for what starts from now on; a
                value of ``None`` removes one.
            network: where it may connect to, at once and for open connections.
            ports: all of that from now on, as for :meth:`create`; ``{}`` for none.
            secrets: all that it has from now on, as for :meth:`create`; ``[]`` for
                none.
            resources: limits, at once and for processes that run.
            user: who new programs run as; ``""`` for the default.
            cwd: where new programs start; ``""`` for the default.

        Raises:
            InvalidRequestError: a value breaks a rule.
            ConflictError: it cannot change while it runs; the message says why.
        """
        changes = {
            "name": name,
            "timeout_seconds": timeout_seconds,
            "idle_timeout_seconds": idle_timeout_seconds,
            "on_timeout": on_timeout,
            "auto_resume": auto_resume,
            "checkpoint_every_seconds": checkpoint_every_seconds,
            "metadata": metadata,
            "env": env,
            "network": network,
            "ports": ports,
            "secrets": secrets,
            "resources": resources,
            "user": user,
            "cwd": cwd,
        }
        return await self._client.call(sessions.update(self._sandbox_id, changes))

    async def open_ports(self, *, agent: bool = False) -> builtins.list[OpenPort]:
        """Return the TCP ports that programs inside listen on, by port and address.

        Args:
            agent: also those of the agent in the Sandbox.
        """
        return await self._client.call(sessions.ports(self._sandbox_id, agent=agent))

    async def port(self, port: int) -> PortAccess:
        """Return how one port is reached, whether something listens or not."""
        return await self._client.call(sessions.port(self._sandbox_id, port))

    async def set_port(
        self, port: int, *, private: bool | None = None, tls: bool | None = None
    ) -> PortAccess:
        """Change how one port is reached, at once; the others stay as they are.

        Args:
            port: what the service listens on.
            private: whether it asks for a token. Default: as it was.
            tls: whether it speaks TLS inside. Default: as it was.

        Raises:
            InvalidRequestError: nothing to change, or a port of the agent.
        """
        call = sessions.set_port(self._sandbox_id, port, private=private, tls=tls)
        return await self._client.call(call)

    async def port_link(self, port: int, *, expires_in_seconds: float | None = None) -> PortLink:
        """Return a link to one port, and the token in it. Whoever has it can use it.

        Args:
            port: what the service listens on.
            expires_in_seconds: up to a week. Default: an hour.
        """
        return await self._client.call(
            sessions.port_link(self._sandbox_id, port, expires_in_seconds)
        )

    async def set_timeout(self, seconds: float) -> SandboxInfo:
        """Move the deadline to this many seconds from now, nearer or farther.

        Raises:
            InvalidRequestError: not above 0, or more than 86,400.
        """
        return await self._client.call(sessions.set_timeout(self._sandbox_id, seconds))

    async def touch(self) -> SandboxInfo:
        """Start its time anew: the timeouts count from now; none comes nearer."""
        return await self._client.call(sessions.touch(self._sandbox_id))

    async def pause(self, *, memory: bool = True) -> SandboxInfo:
        """Save it and let go of what it runs on; return when that is safe.

        Memory, processes, terminals and files are as they were when it resumes,
        which any call that reaches into it does, unless it was made with
        ``auto_resume=False``. Connections to the outside break. One that is
        paused stays as it is; one that cannot be saved runs on.

        Args:
            memory: False saves files only, and resuming boots.

        Raises:
            UnsupportedError: the engine cannot save what runs in it.
        """
        return await self._client.call(snapshots.pause(self._sandbox_id, memory=memory))

    async def resume(self, *, memory: bool = True) -> SandboxInfo:
        """Let it go on and return when it runs; its time begins anew.

        Args:
            memory: False has it boot from its files alone, and what was running
                is gone.

        Raises:
            ConflictError: what it was saved in is damaged or gone; it stays
                paused.
        """
        return await self._client.call(snapshots.resume(self._sandbox_id, memory=memory))

    async def fork(
        self,
        count: int = 1,
        *,
        name: str | None = None,
        timeout_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        on_timeout: Literal["pause", "pause_files", "end"] | None = None,
        auto_resume: bool | None = None,
        network: Literal["public", "none"] | Mapping[str, object] | None = None,
        secrets: Sequence[Mapping[str, str]] | None = None,
        keep_secrets: bool = False,
        metadata: Mapping[str, str | None] | None = None,
        env: Mapping[str, str | None] | None = None,
        idempotency_key: str | None = None,
    ) -> builtins.list[AsyncSandbox]:
        """Start copies of it, which go on from where it is; it goes on too.

        Each has its own ID and randomness. What is not given is as here, but for
        secrets. They
        share its connection, which closes with the last of them.

        Args:
            count: how many, up to 100.
            name: a name; of several, ``name-1``, ``name-2`` and so on.
            timeout_seconds: as for :meth:`create`, and so are the next four.
            idle_timeout_seconds: its time without use.
            on_timeout: what the end of its time does.
            auto_resume: whether calls resume it.
            network: where it may connect to.
            secrets: those of the copies, as for :meth:`create`; they have none
                unless told so.
            keep_secrets: the copies use the secrets that it does.
            metadata: pairs to set; a value of ``None`` removes one.
            env: environment variables to set for what starts from now on; a
                value of ``None`` removes one.
            idempotency_key: as for :meth:`create`.

        Raises:
            ForkError: some do not run; it has those that do.
            ExhaustedError: a quota or the server's capacity is used up.
        """
        call = snapshots.fork(
            self._sandbox_id,
            count=count,
            name=name,
            timeout_seconds=timeout_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
            on_timeout=on_timeout,
            auto_resume=auto_resume,
            network=network,
            secrets=secrets,
            keep_secrets=keep_secrets,
            metadata=metadata,
            env=env,
            key=idempotency_key,
        )
        made: builtins.list[AsyncSandbox] = []
        errors: builtins.list[CloudSandboxError] = []
        for fork in await self._client.call(call):
            if isinstance(fork, CloudSandboxError):
                errors.append(fork)
                continue
            if self._owns_client:
                self._client.own()
            made.append(type(self)(self._client, fork.sandbox_id, owns_client=self._owns_client))
        if errors:
            raise ForkError(made, errors)
        return made

    async def snapshot(
        self, name: str | None = None, *, memory: bool = True, idempotency_key: str | None = None
    ) -> SnapshotInfo:
        """Save it, while it goes on after a moment, in a Snapshot that is kept.

        The Snapshot stays until ``client.snapshots.delete``, also when the
        Sandbox ends. Go back to it with :meth:`rollback`, or start others from
        it with ``create(snapshot=...)``.

        Args:
            name: a name, unique among the Snapshots of this Sandbox.
            memory: False saves files only.
            idempotency_key: as for :meth:`create`.

        Raises:
            ConflictError: the name is in use.
        """
        call = snapshots.take(self._sandbox_id, name=name, memory=memory, key=idempotency_key)
        return await self._client.call(call)

    async def history(self) -> builtins.list[SnapshotInfo]:
        """Return what it was saved in and came from, oldest first.

        ``parent_id`` makes it a tree; ``current`` marks where the Sandbox is.
        """
        return await self._client.call(snapshots.history(self._sandbox_id))

    async def rollback(self, snapshot: SnapshotInfo | str) -> SandboxInfo:
        """Go back to one of its Snapshots and return when it runs.

        What it was until then is lost, unless a Snapshot was taken before. IDs
        of processes from before no longer hold.

        Args:
            snapshot: the Snapshot, or its ID or name.

        Raises:
            NotFoundError: its history has no such Snapshot.
        """
        call = snapshots.rollback(self._sandbox_id, snapshot_id(snapshot))
        return await self._client.call(call)

    async def kill(self) -> bool:
        """End the Sandbox now: its processes stop and its files are gone.

        Returns:
            False when it had ended already.
        """
        try:
            await self._client.call(sessions.delete(self._sandbox_id))
        except NotFoundError:
            return False
        return True

    async def aclose(self) -> None:
        """Close the connection and leave the Sandbox running until its deadline.

        A shared ``client`` stays open, as does one that forks still use.
        """
        if self._owns_client:
            self._owns_client = False
            await self._client.disown()

    async def __aenter__(self) -> AsyncSandbox:
        # The block ends it; should this program die in it, its timeout does.
        if self._ends_with_block:
            try:
                await self.update(on_timeout="end")
            except BaseException as err:
                await self.__aexit__(type(err), err, err.__traceback__)
                raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        with _io.shielded():
            try:
                await self.kill()
            except CloudSandboxError as err:
                if exc is None:
                    raise
                # What went wrong in the block matters more.
                _log.warning("sandbox %s was not ended: %s", self._sandbox_id, err)
            finally:
                await self.aclose()


@asynccontextmanager
async def _closing_on_error(client: AsyncClient, owned: bool) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        if owned:
            with _io.shielded():
                await client.aclose()
        raise


async def _all_sessions(
    client: AsyncClient,
    limit: int | None,
    states: Sequence[str] | None,
    metadata: Mapping[str, str] | None,
) -> AsyncIterator[SandboxInfo]:
    """Read page after page, up to limit Sandboxes."""
    cursor = ""
    left = limit
    while left is None or left > 0:
        size = None if left is None else min(left, _PAGE_SIZE)
        page, cursor = await client.call(sessions.page(size, cursor or None, states, metadata))
        for info in page[:left]:
            yield info
        left = None if left is None else left - len(page)
        if not cursor:
            return
