# Generated from _async by scripts/generate_sync.py: edit it there.
"""Changes of files as they happen."""

from __future__ import annotations

from types import TracebackType

from cloud_sandbox._api import files
from cloud_sandbox._api.call import Call, Path
from cloud_sandbox.models import FileChange

from .client import Client
from .following import Follower

__all__ = ["FileWatch"]


class FileWatch:
    """Changes below a folder, as ``files.watch`` follows them.

    Iterate over it, in a ``with`` block. It ends with an exception:
    ``NotFoundError`` when the folder is removed, others when the Sandbox ends.
    """

    def __init__(
        self,
        client: Client,
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
        self._follower = Follower(client, self._ask)

    def _ask(self) -> Call[None]:
        return files.watch(
            self._sandbox_id,
            self._path,
            since=self._cursor,
            recursive=self._recursive,
            user=self._user,
        )

    @classmethod
    def open(
        cls,
        client: Client,
        sandbox_id: str,
        path: Path,
        *,
        since: str | None,
        recursive: bool,
        user: str | None,
    ) -> FileWatch:
        """Begin, and return once every later change is told."""
        watch = cls(client, sandbox_id, path, since=since, recursive=recursive, user=user)
        try:
            watch._follower.open()
            watch._pending = watch._advance()
        except BaseException:
            watch.close()
            raise
        return watch

    @property
    def cursor(self) -> str | None:
        """Where it is: what comes after is told to whoever asks ``since`` this."""
        return self._cursor

    def _advance(self) -> FileChange | None:
        """Take the next event; None if it reports nothing."""
        event = self._follower.next()
        if event is None:
            raise StopIteration
        change, tells = files.change_of(event)
        self._cursor = change.cursor or self._cursor
        return change if tells else None

    def __iter__(self) -> FileWatch:
        return self

    def __next__(self) -> FileChange:
        change, self._pending = self._pending, None
        while change is None:
            change = self._advance()
        return change

    def close(self) -> None:
        """Stop following; more than once is the same as once."""
        self._follower.close()

    def __enter__(self) -> FileWatch:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()
