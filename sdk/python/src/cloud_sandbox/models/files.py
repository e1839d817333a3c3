"""Files, folders and what is done with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from cloud_sandbox.errors import CloudSandboxError


@dataclass(frozen=True)
class FileEntry:
    """One file, folder or link in a Sandbox.

    All of it is the Sandbox's word: code inside can make any name and any
    link. Check a ``path`` before using it outside.

    Attributes:
        name: the last part of ``path``.
        path: absolute path inside the Sandbox.
        type: ``"file"``, ``"directory"``, ``"symlink"`` or ``"other"``.
        size_bytes: length of a file.
        mode: permissions in octal, such as ``"0644"``.
        owner: user name or number.
        group: group name or number.
        modified_at: time of the last change, in UTC.
        symlink_target: where a link points; ``None`` for anything else.
    """

    name: str
    path: str
    type: str
    size_bytes: int = 0
    mode: str = ""
    owner: str = ""
    group: str = ""
    modified_at: datetime | None = None
    symlink_target: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether this is a folder."""
        return self.type == "directory"


class FileList(list[FileEntry]):
    """What is in a folder.

    Attributes:
        truncated: there is more than one answer may hold.
    """

    def __init__(self, entries: Iterable[FileEntry] = (), *, truncated: bool = False) -> None:
        super().__init__(entries)
        self.truncated = truncated


ArchiveFormat = Literal["tar", "tar.gz", "zip"]


@dataclass(frozen=True)
class CopyResult:
    """What a copy made.

    Attributes:
        entry: what is now at the destination.
        files: files and links that were copied.
        bytes: how much that was.
        files_skipped: sockets, pipes and devices that were left out.
    """

    entry: FileEntry
    files: int = 0
    bytes: int = 0
    files_skipped: int = 0


@dataclass(frozen=True)
class SearchMatch:
    """One line that matches, or one file.

    Attributes:
        path: the file.
        line: number of the line, from 1; ``None`` for a file as such.
        text: the line without its end, at most 2,048 bytes of it.
        cut: the line goes on.
        spans: where in ``text`` the pattern matches: start and end, counted in
            bytes of UTF-8.
        before: lines before it.
        after: lines after it.
    """

    path: str
    line: int | None = None
    text: str = ""
    cut: bool = False
    spans: tuple[tuple[int, int], ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """What a search found; iterate over it for the matches.

    Attributes:
        matches: in order of paths and lines.
        files_searched: files that were looked into.
        truncated: there may be more.
    """

    matches: tuple[SearchMatch, ...] = ()
    files_searched: int = 0
    truncated: bool = False

    def __iter__(self) -> Iterator[SearchMatch]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)


@dataclass(frozen=True)
class ExtractResult:
    """What was unpacked of an archive.

    Attributes:
        path: the folder.
        files: files that were written.
        directories: folders that were made.
        links: symbolic links that were made.
        skipped: devices and other things that are no files.
        bytes: how much was written.
    """

    path: str = ""
    files: int = 0
    directories: int = 0
    links: int = 0
    skipped: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class ReplacedFile:
    """What was replaced in one file.

    Attributes:
        path: the file.
        count: occurrences.
        lines: where the first 100 of them began, before.
    """

    path: str
    count: int = 0
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplaceResult:
    """What was replaced.

    Attributes:
        count: occurrences in all files.
        files: the files that had some.
        files_too_large: files of more than 16 MiB, which were passed over.
        dry_run: nothing was changed.
    """

    count: int = 0
    files: tuple[ReplacedFile, ...] = ()
    files_too_large: int = 0
    dry_run: bool = False


@dataclass(frozen=True)
class FileOperation:
    """One thing to do in a batch. What does not concern it is left out.

    Attributes:
        op: what to do.
        path: where; for all but ``"move"`` and ``"copy"``.
        source: for ``"move"`` and ``"copy"``.
        destination: for ``"move"`` and ``"copy"``.
        content: for ``"write"``; str is written as UTF-8.
        mode: for ``"chmod"``, and for ``"write"`` if you like: a number such as
            ``0o755``, or octal text such as ``"755"``.
        max_bytes: for ``"read"``, up to 1 MiB, which is the default.
        depth: for ``"list"``, as in ``files.list``.
        recursive: for ``"copy"``, ``"chmod"`` and ``"remove"``.
        overwrite: for ``"copy"``.
        user: for ``"copy"`` and ``"chmod"``: who acts.
    """

    op: Literal["read", "write", "stat", "list", "mkdir", "move", "copy", "chmod", "remove"]
    path: str | os.PathLike[str] | None = None
    source: str | os.PathLike[str] | None = None
    destination: str | os.PathLike[str] | None = None
    content: str | bytes | None = field(default=None, repr=False)
    mode: int | str | None = None
    max_bytes: int | None = None
    depth: int | None = None
    recursive: bool = False
    overwrite: bool = False
    user: str | None = None


@dataclass(frozen=True)
class FileOutcome:
    """What became of one operation of a batch.

    Attributes:
        status: ``"ok"``, ``"error"``, or ``"skipped"`` after an error.
        entry: what is there now, or was looked at.
        entries: what a ``"list"`` found.
        content: what a ``"read"`` got.
        truncated: a ``"read"`` or ``"list"`` did not return all.
        changed: how many files and folders a ``"chmod"`` changed.
        error: why it failed; not raised. ``None`` if it did not.
    """

    status: str
    entry: FileEntry | None = None
    entries: tuple[FileEntry, ...] = ()
    content: bytes | None = field(default=None, repr=False)
    truncated: bool = False
    changed: int = 0
    error: CloudSandboxError | None = None

    @property
    def ok(self) -> bool:
        """Whether the status is ``"ok"``."""
        return self.status == "ok"

    @property
    def text(self) -> str:
        """What a ``"read"`` got, decoded as UTF-8."""
        return (self.content or b"").decode()


@dataclass(frozen=True)
class BatchResult:
    """What became of a batch; iterate over it for each outcome.

    Attributes:
        results: in the order of the operations.
        failed: how many have another status than ``"ok"``.
    """

    results: tuple[FileOutcome, ...] = ()
    failed: int = 0

    def __iter__(self) -> Iterator[FileOutcome]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, index: int) -> FileOutcome:
        return self.results[index]


@dataclass(frozen=True)
class FileChange:
    """One change below a folder that is watched.

    Attributes:
        type: ``"created"``, ``"modified"``, ``"attributes"``, ``"removed"``,
            ``"renamed"`` (this is the old name; the new one, if it is below the
            folder, is ``"created"``), or ``"reset"``: changes are missing, look
            at the files anew.
        path: what changed; with ``"reset"`` the folder.
        cursor: to go on after it.
    """

    type: str
    path: str
    cursor: str = ""


@dataclass(frozen=True)
class FileChanges:
    """What has changed below a folder; iterate over it for each change.

    Attributes:
        changes: oldest first.
        cursor: to ask for what changes from now on.
        reset: changes are missing: look at the files anew.
    """

    changes: tuple[FileChange, ...] = ()
    cursor: str = ""
    reset: bool = False

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)


@dataclass(frozen=True)
class SignedURL:
    """A URL for one file that needs no token: treat it as a password.

    Attributes:
        url: the URL.
        method: how to use it: ``"GET"`` or ``"PUT"``.
        expires_at: until when, in UTC.
    """

    url: str = field(repr=False)
    method: str = "GET"
    expires_at: datetime | None = None

    def __str__(self) -> str:
        """Return the URL."""
        return self.url
