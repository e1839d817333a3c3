"""Dockerfiles and the folders that they copy from."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path as LocalPath

from .call import Path

_IGNORE_FILE = ".dockerignore"
_COPIES = re.compile(r"^\s*(COPY|ADD)\s", re.IGNORECASE | re.MULTILINE)
_PIECE_BYTES = 256 << 10
# Ends a tar file.
ARCHIVE_END = b"\0" * (2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile as it is sent.

    Attributes:
        text: what it says.
        archive: its build context, to be read once; None when it copies nothing.
    """

    text: str
    archive: Archive | None


def read(dockerfile: Path, context: Path | None) -> Recipe:
    """Read a Dockerfile, and prepare its context: by default the folder that it is in.

    Raises:
        OSError: they cannot be read.
    """
    file = LocalPath(dockerfile)
    text = file.read_text(encoding="utf-8")
    if not _COPIES.search(text):
        return Recipe(text, None)
    folder = LocalPath(context) if context is not None else file.parent
    if not folder.is_dir():
        raise NotADirectoryError(f"the build context {str(folder)!r} is not a folder")
    ignoring = b""
    for candidate in (file.with_name(file.name + _IGNORE_FILE), folder / _IGNORE_FILE):
        if candidate.is_file():
            ignoring = candidate.read_bytes()
            break
    return Recipe(text, Archive(_pack(folder, ignoring)))


class Archive:
    """A tar file that is made as it is read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, _most: int = -1) -> bytes:
        """Return the next bytes, however many; none at the end."""
        return next((piece for piece in self._pieces if piece), b"")


def _pack(folder: LocalPath, ignoring: bytes) -> Iterator[bytes]:
    ignored = Ignored(ignoring.decode("utf-8", "replace"))
    # The server leaves out the same, so that one client is like another.
    head = tarfile.TarInfo(_IGNORE_FILE)
    head.size = len(ignoring)
    yield head.tobuf(tarfile.PAX_FORMAT) + ignoring + padding(head.size)
    with tarfile.TarFile(fileobj=io.BytesIO(), mode="w") as reader:
        for path, name in _below(folder, "", ignored):
            if name != _IGNORE_FILE:
                yield from _entry(reader.gettarinfo(path, name), LocalPath(path))
    yield ARCHIVE_END


def padding(size: int) -> bytes:
    """Return what follows so many bytes in a tar file."""
    return b"\0" * (-size % tarfile.BLOCKSIZE)


def _entry(info: tarfile.TarInfo | None, path: LocalPath) -> Iterator[bytes]:
    if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        return  # a device, a pipe or a socket
    if info.islnk():  # another name of a file that is there: each is sent
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    yield info.tobuf(tarfile.PAX_FORMAT)
    if not info.isreg():
        return
    left = info.size
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            left -= len(piece)
            yield piece
    if left:
        raise OSError(f"{path} became shorter while it was read: try again")
    yield padding(info.size)


def _below(folder: LocalPath, prefix: str, ignored: Ignored) -> Iterator[tuple[str, str]]:
    """Yield what is in a folder, folders before what is in them; links are no folders."""
    for entry in sorted(os.scandir(folder), key=lambda found: found.name):
        name = prefix + entry.name
        if not ignored.has(name):
            yield entry.path, name
            out = False
        else:
            out = ignored.whole  # else an exception may be in it
        if entry.is_dir(follow_symlinks=False) and not out:
            yield from _below(LocalPath(entry.path), name + "/", ignored)


class Ignored:
    """The paths that a .dockerignore leaves out.

    Attributes:
        whole: all of a folder is left out that is left out itself.
    """

    def __init__(self, text: str) -> None:
        self._rules: list[tuple[bool, re.Pattern[str]]] = []
        for line in text.removeprefix("\ufeff").splitlines():
            pattern = line.strip()
            if not pattern or line.startswith("#"):
                continue
            excepted = pattern.startswith("!")
            pattern = pattern.removeprefix("!").strip()
            pattern = os.path.normpath(pattern).replace(os.sep, "/").lstrip("/")
            if pattern and pattern != ".":
                self._rules.append((excepted, re.compile(_expression(pattern))))
        self.whole = not any(excepted for excepted, _ in self._rules)

    def has(self, name: str) -> bool:
        """Whether a path, with slashes, is left out."""
        parts = name.split("/")
        paths = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        out = False
        for excepted, rule in self._rules:
            if excepted == out and any(rule.fullmatch(path) for path in paths):
                out = not excepted
        return out


def _expression(pattern: str) -> str:
    """Translate a pattern as Docker does."""
    out = ""
    at = 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern[at : at + 1] == "*":
            at += 1
            if pattern[at : at + 1] == "/":
                at += 1
            out += ".*" if at == len(pattern) else "(.*/)?"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "\\" and at < len(pattern):
            out += re.escape(pattern[at])
            at += 1
        elif char in "[]":
            out += char
        else:
            out += re.escape(char)
    return out
