"""Changes of files as they happen."""

from __future__ import annotations

from types import TracebackType

from cloud_sandbox._api import files
from cloud_sandbox._api.call import Call, Path
from cloud_sandbox.models import FileChange

from .client import AsyncClient
from .following import AsyncFollower

__all__ = ["AsyncFileWatch"]


class AsyncFileWatch:
    """Changes below a folder, as ``files.watch`` follows them.

    Iterate over it, in an ``async with`` block. It ends with an exception:
    ``NotFoundError`` when the folder is removed, others when the Sandbox ends.
    """

    def __init__(
        self,
        client: AsyncClient,
        sandbox_id: str,
        path: Path,
        *,
        since: str | None,
        recursive: bool,
        user: str | None,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._path = path
        self._recursive = recursive
        self._user = user
        self._cursor = since
        self._pending: FileChange | None = None
        self._follower = AsyncFollower(client, self._ask)

    def _ask(self) -> Call[None]:
        return files.watch(
            self._sandbox_id,
            self._path,
            since=self._cursor,
            recursive=self._recursive,
            user=self._user,
        )

    @classmethod
    async def open(
        cls,
        client: AsyncClient,
        sandbox_id: str,
        path: Path,
        *,
        since: str | None,
        recursive: bool,
        user: str | None,
    ) -> AsyncFileWatch:
        """Begin, and return once every later change is told."""
        watch = cls(client, sandbox_id, path, since=since, recursive=recursive, user=user)
        try:
            await watch._follower.open()
            watch._pending = await watch._advance()
        except BaseException:
            await watch.aclose()
            raise
        return watch

    @property
    def cursor(self) -> str | None:
        """Where it is: what comes after is told to whoever asks ``since`` this."""
        return self._cursor

    async def _advance(self) -> FileChange | None:
        """Take the next event; None if it reports nothing."""
        event = await self._follower.next()
        if event is None:
            raise StopAsyncIteration
        change, tells = files.change_of(event)
        self._cursor = change.cursor or self._cursor
        return change if tells else None

    def __aiter__(self) -> AsyncFileWatch:
        return self

    async def __anext__(self) -> FileChange:
        change, self._pending = self._pending, None
        while change is None:
            change = await self._advance()
        return change

    async def aclose(self) -> None:
        """Stop following; more than once is the same as once."""
        await self._follower.aclose()

    async def __aenter__(self) -> AsyncFileWatch:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.aclose()
