"""Building Templates."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from email import message_from_bytes
from typing import Any

import pytest

from cloud_sandbox import Client, ConflictError, TemplateFile

from .flavours import Flavour
from .server import Answer, Received, Reply, Server

Serve = Callable[[Answer], Server]

BUILD = {"build_id": "t1", "state": "building"}


def event(name: str, **data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


def test_an_archive_and_files(sdk: Flavour, serve: Serve) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "POST":
            return Reply(202, json.dumps(BUILD).encode())
        line = event("line", text="it works", next_offset=9)
        return Reply(
            body=[event("start", **BUILD), line, event("end", **BUILD | {"state": "ready"})]
        )

    server = serve(answer)
    heard: list[str] = []
    files = [TemplateFile("/a", "text"), TemplateFile("/b", b"\xff", mode=0o755, owner="user")]
    with sdk.Client(server.url, token="t") as client:
        build = client.templates.build(
            "mine:1", "tar:", archive=io.BytesIO(b"a tar file"), files=files, on_log=heard.append
        )
    assert (build.state, heard) == ("ready", ["it works"])
    received = server.received[0]
    assert "idempotency-key" not in received.headers
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    parts: Any = message_from_bytes(head + received.body).get_payload()
    names = [part.get_param("name", header="content-disposition") for part in parts]
    assert names == ["template", "archive"]
    assert json.loads(parts[0].get_payload(decode=True)) == {
        "template": "mine:1",
        "source": "tar:",
        "files": [
            {"path": "/a", "content": "text"},
            {"path": "/b", "content_base64": "/w==", "mode": "0755", "owner": "user"},
        ],
    }
    assert parts[1].get_payload(decode=True) == b"a tar file"


def test_a_build_that_was_cancelled(sdk: Flavour, serve: Serve) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "POST":
            return Reply(202, json.dumps(BUILD).encode())
        return Reply(body=[event("start", **BUILD), event("end", **BUILD | {"state": "cancelled"})])

    with (
        sdk.Client(serve(answer).url, token="t") as client,
        pytest.raises(ConflictError, match="cancelled"),
    ):
        client.templates.build("mine", "debian:bookworm")


@pytest.mark.integration
def test_a_template_of_an_archive(sdk: Flavour, client: Client) -> None:
    lines: list[str] = []
    with sdk.Sandbox.create(client=client) as sandbox:
        done = sandbox.run_command(
            "mkdir -p rootfs/bin && cp /bin/sh /bin/cat rootfs/bin && for f in $(ldd /bin/sh "
            "/bin/cat | grep -o '/[^ :]*' | sort -u); do mkdir -p rootfs$(dirname $f); "
            "cp -L $f rootfs$f; done"
        )
        assert done.ok, done
        with sandbox.files.read_archive("rootfs") as archive:
            content = archive.read_all()
    name = f"sdk-{sdk.name}"
    build = client.templates.build(
        f"{name}:1",
        "tar:",
        archive=io.BytesIO(content),
        files=[TemplateFile("/srv/hello", "hello from a template")],
        on_log=lines.append,
    )
    assert (build.state, build.template) == ("ready", f"{name}:1")
    assert build.build_id in [found.build_id for found in client.templates.builds()]
    found = client.templates.get(f"{name}:1")
    assert (found.version, found.shared, len(found.versions)) == (build.version, False, 1)
    assert {"base", f"{name}:1"} <= {info.template for info in client.templates.list()}
    with sdk.Sandbox.create(client=client, template=f"{name}:1") as sandbox:
        assert sandbox.read_file("/srv/hello") == "hello from a template"
        with pytest.raises(ConflictError):
            client.templates.delete(name)
    with pytest.raises(ConflictError):
        client.templates.cancel(build.build_id)
    assert f"{name}:1" in client.templates.delete(name)
