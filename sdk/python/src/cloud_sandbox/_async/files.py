"""The files of a Sandbox."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Literal, overload

from cloud_sandbox._api import files
from cloud_sandbox._api.call import Path
from cloud_sandbox.errors import ConflictError, NotFoundError
from cloud_sandbox.models import (
    ArchiveFormat,
    BatchResult,
    CopyResult,
    ExtractResult,
    FileChanges,
    FileEntry,
    FileList,
    FileOperation,
    ReplaceResult,
    SearchResult,
    SignedURL,
)

from ._io import Data
from .client import AsyncClient
from .life import is_over, look
from .streams import AsyncByteStream
from .watching import AsyncFileWatch

__all__ = ["AsyncFiles"]


class AsyncFiles:
    """The files of a Sandbox: ``sandbox.files``.

    Paths are inside the Sandbox; one that is not absolute is below
    ``/workspace``. Methods that take a ``user`` act with that user's rights;
    default: the Sandbox's user, and ``"root"`` may do everything.
    """

    def __init__(self, client: AsyncClient, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_id = sandbox_id

    async def write(self, path: Path, data: Data) -> FileEntry:
        """Write a file; folders above it are made, an old file is replaced.

        Args:
            path: where in the Sandbox.
            data: str (written as UTF-8), bytes, an open file, or an iterable of
                str or bytes. Files and iterables are sent as they are read, in
                constant memory; only files that can be rewound are sent again
                when the connection breaks.

        Raises:
            ConflictError: there is a folder at this path.
            TooLargeError: the server does not take that much.
        """
        return await self._client.call(files.write(self._sandbox_id, path, data))

    @overload
    async def read(
        self,
        path: Path,
        format: Literal["text"] = "text",
        *,
        start: int = 0,
        length: int | None = None,
    ) -> str: ...
    @overload
    async def read(
        self, path: Path, format: Literal["bytes"], *, start: int = 0, length: int | None = None
    ) -> bytes: ...
    @overload
    async def read(
        self, path: Path, format: Literal["stream"], *, start: int = 0, length: int | None = None
    ) -> AsyncByteStream: ...

    async def read(
        self,
        path: Path,
        format: Literal["text", "bytes", "stream"] = "text",
        *,
        start: int = 0,
        length: int | None = None,
    ) -> str | bytes | AsyncByteStream:
        """Read a file, or a part of it.

        Args:
            path: where in the Sandbox.
            format: ``"text"`` for str, decoded as UTF-8; ``"bytes"``; or
                ``"stream"`` for an :class:`AsyncByteStream` that holds only a
                piece at a time.
            start: the first byte; below 0, that many bytes from the end.
            length: how many bytes at most. Default: to the end.

        Raises:
            NotFoundError: the file does not exist.
            InvalidRequestError: it is a folder, or has nothing at ``start``.
            UnicodeDecodeError: it is not UTF-8 text.
        """
        if format not in ("text", "bytes", "stream"):
            raise ValueError(f'format must be "text", "bytes" or "stream", not {format!r}')
        call = files.read(self._sandbox_id, path, start, length)
        if format == "stream":
            return await self._client.open(call)
        content = await self._client.call(call)
        return content if format == "bytes" else content.decode()

    async def list(self, path: Path = "/workspace", depth: int = 1) -> FileList:
        """Return what is in a folder.

        Args:
            path: the folder.
            depth: how many levels to go down; 1 leaves out what is in folders
                below it. At most 32.

        Raises:
            NotFoundError: the folder does not exist.
        """
        return await self._client.call(files.every(self._sandbox_id, path, depth))

    async def stat(self, path: Path) -> FileEntry:
        """Return what is known of a file, a folder, or a link itself.

        Raises:
            NotFoundError: the path does not exist.
        """
        return await self._client.call(files.stat(self._sandbox_id, path))

    async def exists(self, path: Path) -> bool:
        """Return whether there is something at a path.

        Raises:
            NotFoundError: the Sandbox itself is gone.
        """
        try:
            await self.stat(path)
        except NotFoundError:
            if is_over(await look(self._client, self._sandbox_id)):
                raise
            return False
        return True

    async def make_dir(self, path: Path, exist_ok: bool = False) -> FileEntry:
        """Make a folder and those above it.

        Args:
            path: where in the Sandbox.
            exist_ok: a folder that is there already is as good.

        Raises:
            ConflictError: there is something at this path.
        """
        try:
            return await self._client.call(files.make_dir(self._sandbox_id, path))
        except ConflictError:
            if exist_ok and (entry := await self.stat(path)).is_dir:
                return entry
            raise

    async def move(self, source: Path, destination: Path) -> FileEntry:
        """Move or rename a file or a folder.

        Raises:
            NotFoundError: ``source`` does not exist.
        """
        return await self._client.call(files.move(self._sandbox_id, source, destination))

    async def copy(
        self,
        source: Path,
        destination: Path,
        *,
        recursive: bool = False,
        overwrite: bool = False,
        user: str | None = None,
    ) -> CopyResult:
        """Copy a file or a folder. Permissions and links are kept as they are.

        Args:
            source: what to copy.
            destination: the copy itself, not the folder for it; missing folders
                above it are made.
            recursive: needed for a folder.
            overwrite: replace files that exist, and merge folders.
            user: who acts.

        Raises:
            NotFoundError: ``source`` does not exist.
            ConflictError: there is something at ``destination``.
        """
        return await self._client.call(
            files.copy(
                self._sandbox_id,
                source,
                destination,
                recursive=recursive,
                overwrite=overwrite,
                user=user,
            )
        )

    async def chmod(
        self, path: Path, mode: int | str, *, recursive: bool = False, user: str | None = None
    ) -> int:
        """Change permissions and return how many files and folders changed.

        Args:
            path: what to change; a link is followed.
            mode: a number such as ``0o755``, or octal text such as ``"755"``.
            recursive: all below a folder too; links there are left alone.
            user: who acts.

        Raises:
            NotFoundError: the path does not exist.
        """
        call = files.chmod(self._sandbox_id, path, mode, recursive=recursive, user=user)
        return await self._client.call(call)

    async def search(
        self,
        pattern: str | None = None,
        path: Path | None = None,
        *,
        literal: bool = False,
        ignore_case: bool = False,
        word: bool = False,
        files_only: bool = False,
        globs: Sequence[str] | None = None,
        hidden: bool = False,
        no_ignore: bool = False,
        max_results: int | None = None,
        context_lines: int | None = None,
        user: str | None = None,
    ) -> SearchResult:
        """Look for lines in files with the rules of ripgrep, or for files by name.

        What ``.gitignore`` and ``.ignore`` exclude, hidden files, files that are
        not text, and links are passed over. A search that takes longer than
        30 seconds ends with what it has found, ``truncated``.

        Args:
            pattern: a regular expression (RE2). Without one, files are found by
                name.
            path: a folder or one file. Default: ``/workspace``.
            literal: the pattern is plain text.
            ignore_case: capital and small letters are the same.
            word: only whole words.
            files_only: each file that matches once, without lines.
            globs: names such as ``*.py`` or paths such as ``src/**/*.ts``. One
                must match; one that begins with ``!`` excludes.
            hidden: also names that begin with a dot.
            no_ignore: also what ``.gitignore`` and ``.ignore`` exclude.
            max_results: up to 10,000 lines or files. Default: 100.
            context_lines: lines before and after each match, up to 20.
            user: who acts.

        Raises:
            InvalidRequestError: the pattern or a glob cannot be read.
            NotFoundError: the path does not exist.
        """
        return await self._client.call(
            files.search(
                self._sandbox_id,
                pattern,
                path,
                literal=literal,
                ignore_case=ignore_case,
                word=word,
                files_only=files_only,
                globs=globs,
                hidden=hidden,
                no_ignore=no_ignore,
                max_results=max_results,
                context_lines=context_lines,
                user=user,
            )
        )

    async def replace(
        self,
        path: Path,
        pattern: str,
        replacement: str,
        *,
        regex: bool = False,
        ignore_case: bool = False,
        globs: Sequence[str] | None = None,
        hidden: bool = False,
        no_ignore: bool = False,
        expected_count: int | None = None,
        dry_run: bool = False,
        user: str | None = None,
    ) -> ReplaceResult:
        """Put one text in the place of another, in a file or below a folder.

        Each file has its old content or its new, never a part. Files of more
        than 16 MiB are passed over and counted.

        Args:
            path: a file, or a folder in which files are chosen as by
                :meth:`search`.
            pattern: the text, which may have several lines.
            replacement: what comes in its place.
            regex: the pattern is a regular expression (RE2), and ``$1`` or
                ``${name}`` in the replacement a group of it.
            ignore_case: capital and small letters are the same.
            globs: as in :meth:`search`.
            hidden: also names that begin with a dot.
            no_ignore: also what ``.gitignore`` and ``.ignore`` exclude.
            expected_count: how many occurrences there must be; with another
                number nothing is changed.
            dry_run: change nothing, only count.
            user: who acts.

        Raises:
            ConflictError: another number than ``expected_count``.
            InvalidRequestError: the pattern or a glob cannot be read.
            NotFoundError: the path does not exist.
        """
        return await self._client.call(
            files.replace(
                self._sandbox_id,
                path,
                pattern,
                replacement,
                regex=regex,
                ignore_case=ignore_case,
                globs=globs,
                hidden=hidden,
                no_ignore=no_ignore,
                expected_count=expected_count,
                dry_run=dry_run,
                user=user,
            )
        )

    async def batch(
        self, operations: Sequence[FileOperation], *, stop_on_error: bool = False
    ) -> BatchResult:
        """Do up to 256 things in one request, one after the other.

        One that fails raises nothing: see ``failed`` and each ``error``. All
        contents together may have some 10 MiB, and what is read 8 MiB.

        Args:
            operations: what to do.
            stop_on_error: skip what comes after one that failed.

        Raises:
            InvalidRequestError: none, too many, or one that makes no sense;
                nothing was done.
        """
        call = files.batch(self._sandbox_id, operations, stop_on_error=stop_on_error)
        return await self._client.call(call)

    async def write_many(
        self, contents: Mapping[str, Data], path: Path = "/workspace"
    ) -> builtins.list[FileEntry]:
        """Write up to 1,000 files in one request; when one fails, those before it stay.

        Args:
            contents: for each file, its name below ``path`` and its data, as for
                :meth:`write`.
            path: the folder.

        Raises:
            InvalidRequestError: a name that leaves the folder.
            ValueError: a name that holds a line end or NUL.
        """
        return await self._client.call(files.write_many(self._sandbox_id, path, contents))

    async def changes(
        self,
        path: Path = "/workspace",
        *,
        since: str | None = None,
        recursive: bool = False,
        user: str | None = None,
    ) -> FileChanges:
        """Return what has changed below a folder since a cursor.

        The Sandbox remembers the last 10,000 changes, and forgets them when
        nobody has asked for ten minutes.

        Args:
            path: the folder.
            since: the ``cursor`` of an earlier answer. Default: begin to
                remember, and return no change but a cursor.
            recursive: also what is in folders below it.
            user: who acts.

        Raises:
            NotFoundError: the folder does not exist.
        """
        call = files.changes(self._sandbox_id, path, since=since, recursive=recursive, user=user)
        return await self._client.call(call)

    async def watch(
        self,
        path: Path = "/workspace",
        *,
        since: str | None = None,
        recursive: bool = False,
        user: str | None = None,
    ) -> AsyncFileWatch:
        """Follow changes below a folder as they happen.

        What changes after this has returned is told, also when the connection
        breaks in between. ::

            async with await sandbox.files.watch("src", recursive=True) as changes:
                async for change in changes:
                    print(change.type, change.path)

        Args:
            path: the folder.
            since: begin after this cursor. Default: now.
            recursive: also what is in folders below it.
            user: who acts.

        Raises:
            NotFoundError: the folder does not exist.
        """
        return await AsyncFileWatch.open(
            self._client, self._sandbox_id, path, since=since, recursive=recursive, user=user
        )

    async def sign(
        self,
        path: Path,
        method: Literal["GET", "PUT"] = "GET",
        *,
        expires_in_seconds: float | None = None,
    ) -> SignedURL:
        """Return a URL that downloads or uploads one file without a token.

        It is good for this path, this method and this Sandbox, until it expires
        or ``AsyncClient.rotate_signing_key`` is called. Whoever has it can use it.

        Args:
            path: the file, which need not be there yet.
            method: ``"GET"`` to download, ``"PUT"`` to upload.
            expires_in_seconds: up to a week. Default: an hour.
        """
        return await self._client.call(
            files.sign(self._sandbox_id, path, method, expires_in_seconds)
        )

    async def remove(self, path: Path, recursive: bool = False) -> None:
        """Delete a file, a link or a folder.

        Args:
            path: what to delete.
            recursive: delete a folder with all that is in it.

        Raises:
            NotFoundError: the path does not exist.
            ConflictError: the folder is not empty, and not ``recursive``.
        """
        await self._client.call(files.delete(self._sandbox_id, path, recursive=recursive))

    async def read_archive(
        self,
        path: Path = "/workspace",
        format: ArchiveFormat = "tar.gz",
        *,
        user: str | None = None,
    ) -> AsyncByteStream:
        """Return what is in a folder as one archive, to be read piece by piece.

        Its names and links are the Sandbox's word: unpack it with care, as with
        ``tarfile``'s ``filter="data"``.

        Args:
            path: the folder.
            format: ``"tar"``, ``"tar.gz"`` or ``"zip"``.
            user: who acts; a file that they may not read fails the call.

        Raises:
            NotFoundError: the folder does not exist.
        """
        call = files.read_archive(self._sandbox_id, path, format, user)
        return await self._client.open(call)

    async def write_archive(
        self,
        path: Path,
        data: Data,
        format: ArchiveFormat | None = None,
        *,
        user: str | None = None,
    ) -> ExtractResult:
        """Unpack an archive into a folder; files that exist are replaced.

        Args:
            path: the folder, which is made if it is not there.
            data: the archive, as for :meth:`write`.
            format: ``"tar"``, ``"tar.gz"`` or ``"zip"``. Default: the content
                says.
            user: who acts, and owns what is written.

        Raises:
            InvalidRequestError: it is no archive, or an entry would be written
                outside of the folder; what came before that entry stays.
        """
        call = files.write_archive(self._sandbox_id, path, data, format, user)
        return await self._client.call(call)
