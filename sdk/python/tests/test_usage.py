"""What Sandboxes used: what is asked of the server, and what comes of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date

import pytest

from cloud_sandbox import Cost, ProtocolError, Usage

from .flavours import Flavour
from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]


def reply(**body: object) -> Reply:
    return Reply(body=json.dumps(body).encode())


def test_usage_page_by_page(sdk: Flavour, serve: Serve) -> None:
    cost = {"currency": "USD", "vcpu": 0.05, "memory": 0.01, "disk": 0, "total": 0.06}
    first = {"day": "2026-01-02", "seconds": 3600, "vcpu_seconds": 3600.5, "cost": cost}

    def answer(received: Received) -> Reply:
        if "cursor" in received.query:
            return reply(rows=[{"sandbox_id": "i1", "seconds": 1, "later": "fields"}])
        return reply(rows=[first], next_cursor="next")

    server = serve(answer)
    with sdk.Client(server.url, token="t") as client:
        rows = client.usage(date(2026, 1, 1), date(2026, 2, 1), group_by=["day", "sandbox"])
        assert rows == [
            Usage(
                day=date(2026, 1, 2),
                seconds=3600,
                vcpu_seconds=3600.5,
                cost=Cost(currency="USD", vcpu=0.05, memory=0.01, total=0.06),
            ),
            Usage(sandbox_id="i1", seconds=1),
        ]
        asked = {"from": "2026-01-01", "to": "2026-02-01", "group_by": "day,sandbox"}
        assert [r.query for r in server.received] == [asked, {**asked, "cursor": "next"}]


def test_usage_by_default(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: reply(rows=[]))
    with sdk.Client(server.url, token="t") as client:
        assert client.usage() == []
        assert client.usage(sandbox_id="i1") == []
        assert [r.query for r in server.received] == [{}, {"sandbox_id": "i1"}]


def test_a_day_that_is_none(sdk: Flavour, serve: Serve) -> None:
    server = serve(lambda _: reply(rows=[{"day": "soon", "seconds": 1}]))
    with sdk.Client(server.url, token="t") as client, pytest.raises(ProtocolError, match="day"):
        client.usage()
