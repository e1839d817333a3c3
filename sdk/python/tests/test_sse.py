from __future__ import annotations

import pytest

from cloud_sandbox import ProtocolError
from cloud_sandbox._api.sse import Decoder, Event

STREAM = (
    'event: stdout\ndata: {"text": "ü\u2028"}\n\n'
    ": comment\n\n"
    "id: 7\r\nevent: b\r\ndata: one\r\ndata:  two\r\n\r\n"
    "data\r\r"
    "event: no data\n\n"
    "event: cut\ndata: off\n"
).encode()
EVENTS = [
    Event("stdout", '{"text": "ü\u2028"}'),
    Event("b", "one\n two", "7"),
    Event("message", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pieces_cut_anywhere(size: int) -> None:
    decoder = Decoder()
    events: list[Event] = []
    for i in range(0, len(STREAM), size):
        events += decoder.feed(STREAM[i : i + size])
    assert events == EVENTS


def test_an_event_without_end_is_refused() -> None:
    decoder = Decoder(max_event_chars=100)
    decoder.feed(b"data: x\n\n" * 100)  # many small ones are fine
    decoder.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError):
        decoder.feed(b"x" * 10)
