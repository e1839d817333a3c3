"""Replays the exchanges in tests/sdk, which every SDK shares."""

from __future__ import annotations

import json
import operator
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cloud_sandbox import CloudSandboxError, __version__

from .conftest import SANDBOX_ID
from .flavours import Flavour
from .server import Received, Reply, Server

REPLAYS = Path(__file__).parents[3] / "tests" / "sdk"

CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted(REPLAYS.glob("*.json"))
    for case in json.loads(file.read_text())
]


def test_there_are_replays() -> None:
    assert len(CASES) > 30


@pytest.mark.parametrize("case", CASES)
def test_replay(sdk: Flavour, case: dict[str, Any]) -> None:
    exchanges = iter(case["exchanges"])

    def answer(received: Received) -> Reply:
        exchange = next(exchanges, None)
        assert exchange is not None, f"one request too many: {received}"
        check_request(received, exchange["request"])
        return reply(exchange["response"])

    output: list[list[str]] = []
    expect = case["expect"]
    with Server(answer) as server:
        if "error" in expect:
            with pytest.raises(CloudSandboxError) as caught:
                call(sdk, case["call"], server.url, output)
            # An assertion that failed in the server explains more than its 500.
            assert not server.problems, server.problems[0]
            for name, value in expect["error"].items():
                assert getattr(caught.value, name) == value
        else:
            check(call(sdk, case["call"], server.url, output), expect["result"])
    assert next(exchanges, None) is None, "one request too few"
    assert output == expect.get("output", [])


def call(sdk: Flavour, spec: dict[str, Any], url: str, output: list[list[str]]) -> Any:
    method, args = spec["method"], dict(spec["args"])
    if "user_id" not in args:
        args["token"] = "test-token"
    if method in ("create", "connect"):
        sandbox = getattr(sdk.Sandbox, method)(base_url=url, **args)
        sandbox.close()
        return sandbox
    if method == "list":
        return sdk.Sandbox.list(base_url=url, **args)
    if method == "set_timeout":
        args["seconds"] = args.pop("timeout_seconds")
    if spec.get("stream"):
        args["on_stdout"] = lambda text: output.append(["stdout", text])
        args["on_stderr"] = lambda text: output.append(["stderr", text])
    with sdk.Client(url, token=args.pop("token")) as client:
        if method.startswith(("audit.", "keys.", "secrets.", "templates.", "users.", "volumes.")):
            return operator.attrgetter(method)(client)(**args)
        sandbox = sdk.Sandbox(client, SANDBOX_ID, owns_client=False)
        return operator.attrgetter(method)(sandbox)(**args)


def check_request(received: Received, want: dict[str, Any]) -> None:
    assert (received.method, received.path) == (want["method"], want["path"])
    assert received.query == want.get("query", {})
    assert received.headers["user-agent"] == f"cloud-sandbox-python/{__version__}"
    for name, value in want["headers"].items():
        assert received.headers.get(name.lower()) == value
    if "json" in want:
        assert received.headers["content-type"] == "application/json"
        assert json.loads(received.body) == want["json"]
    else:
        assert received.body.decode() == want.get("text", "")


def reply(spec: dict[str, Any]) -> Reply:
    headers = dict(spec.get("headers", {}))
    if "pieces" in spec:
        return Reply(spec["status"], [piece.encode() for piece in spec["pieces"]], headers)
    if "text" in spec:
        return Reply(spec["status"], spec["text"].encode(), headers)
    headers["Content-Type"] = "application/json"
    return Reply(spec["status"], json.dumps(spec.get("json", {})).encode(), headers)


def check(got: Any, want: Any) -> None:
    """Compare the fields that want names."""
    if hasattr(got, "session_id"):
        got = {"sandbox_id": got.sandbox_id, "session_id": got.session_id}
    if hasattr(got, "refresh"):
        got = {"process_id": got.process_id}
    if is_dataclass(got) and not isinstance(got, type):
        got = asdict(got)
    if isinstance(got, datetime):
        got = got.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(want, dict) and want:
        for name, value in want.items():
            check(got[name], value)
    elif isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check(one, other)
    else:
        assert got == want
