"""Decoding of server-sent events, without any input or output."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from cloud_sandbox.errors import ProtocolError

# One event holds at most the final result with both output streams, which the
# server caps at a few MiB. Beyond this something is wrong.
MAX_EVENT_CHARS = 64 << 20

# A line with its end, or the beginning of one. str.splitlines would also split
# at characters that are ordinary here.
_PIECES = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Event:
    """One event: its name (``message`` if it has none), its data and its ID."""

    name: str
    data: str
    id: str = ""


class Decoder:
    """Turns chunks of bytes, cut anywhere, into events.

    Lines end with LF, CRLF or CR. Comments and fields other than ``event``,
    ``data`` and ``id`` are skipped; an ID is that of its own event. An event that
    the stream's end cuts off is dropped.
    """

    def __init__(self, max_event_chars: int = MAX_EVENT_CHARS) -> None:
        self._max = max_event_chars
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line: list[str] = []  # pieces of the line that has not ended
        self._after_cr = False
        self._name = ""
        self._id = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes and return the events that they complete."""
        events: list[Event] = []
        for piece in _PIECES.findall(self._utf8.decode(chunk)):
            if self._after_cr and piece == "\n":
                self._after_cr = False
                continue
            self._after_cr = piece.endswith("\r")
            self._add(piece)
            if piece.endswith(("\n", "\r")):
                self._end_line(events)
        return events

    def _add(self, piece: str) -> None:
        self._size += len(piece)
        if self._size > self._max:
            raise ProtocolError("the server sent an event that is too large")
        self._line.append(piece)

    def _end_line(self, events: list[Event]) -> None:
        line = "".join(self._line).rstrip("\r\n")
        self._line.clear()
        if not line:
            if self._data:
                data = "\n".join(self._data)
                events.append(Event(self._name or "message", data, self._id))
            self._name, self._id, self._data, self._size = "", "", [], 0
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            self._name = value
        elif field == "id":
            self._id = value
        elif field == "data":
            self._data.append(value)
