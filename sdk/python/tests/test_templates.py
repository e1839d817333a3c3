"""Building Templates."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from cloud_sandbox import Client, ConflictError, InvalidRequestError, TemplateFile
from cloud_sandbox._api.context import Ignored

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


def test_large_files(sdk: Flavour, serve: Serve) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "POST":
            return Reply(202, json.dumps(BUILD).encode())
        return Reply(body=[event("start", **BUILD), event("end", **BUILD | {"state": "ready"})])

    server = serve(answer)
    large = b"\xff" * (3 << 20)
    files = [
        TemplateFile("/srv/large", large, mode="0750", owner="user"),
        TemplateFile("/srv/a", "\u00e4"),
    ]
    with sdk.Client(server.url, token="t") as client:
        client.templates.build("mine", "debian:bookworm", files=files)
    received = server.received[0]
    head = f"Content-Type: {received.headers['content-type']}\r\n\r\n".encode()
    parts: Any = message_from_bytes(head + received.body).get_payload()
    assert json.loads(parts[0].get_payload(decode=True)) == {
        "template": "mine",
        "source": "debian:bookworm",
    }
    with tarfile.open(fileobj=io.BytesIO(parts[1].get_payload(decode=True))) as archive:
        first, second = archive.getmembers()
        assert (first.name, first.mode, first.uid) == ("srv/large", 0o750, 1000)
        assert (second.name, second.mode, second.uid) == ("srv/a", 0o644, 0)
        content = archive.extractfile(second)
        assert content is not None
        assert content.read() == "\u00e4".encode()


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
    assert found.stored_bytes > 0
    gone = client.templates.delete(name)
    assert f"{name}:1" in gone.removed
    assert gone.freed_bytes == found.stored_bytes


def test_a_dockerfile_and_its_context(sdk: Flavour, serve: Serve, tmp_path: Path) -> None:
    def answer(received: Received) -> Reply:
        if received.method == "POST":
            return Reply(202, json.dumps(BUILD).encode())
        return Reply(body=[event("start", **BUILD), event("end", **BUILD | {"state": "ready"})])

    server = serve(answer)
    for name, text in {
        "Dockerfile": "FROM base\nCOPY . /srv\n",
        "plain": "FROM base\nRUN true\n",
        ".dockerignore": "# not these\n*.log\n!keep.log\n**/node_modules\n/secret\n",
        "a.py": "x" * 300_000,
        "b.log": "",
        "keep.log": "k",
        "app/node_modules/m/index.js": "m",
        "app/main.js": "m",
        "secret/key": "k",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("a.py")
    with sdk.Client(server.url, token="t") as client:
        client.templates.build("mine", dockerfile=tmp_path / "plain", build_args={"A": "1"})
        client.templates.build("mine", dockerfile=str(tmp_path / "Dockerfile"))
        with pytest.raises(FileNotFoundError):
            client.templates.build("mine", dockerfile=tmp_path / "none")
        with pytest.raises(NotADirectoryError):
            client.templates.build("mine", dockerfile=tmp_path / "Dockerfile", context="/none")
        with pytest.raises(ValueError, match="pass dockerfile too"):
            client.templates.build("mine", "debian:bookworm", context=tmp_path)
    posts = [received for received in server.received if received.method == "POST"]
    assert json.loads(posts[0].body) == {
        "template": "mine",
        "dockerfile": "FROM base\nRUN true\n",
        "build_args": {"A": "1"},
    }
    head = f"Content-Type: {posts[1].headers['content-type']}\r\n\r\n".encode()
    parts: Any = message_from_bytes(head + posts[1].body).get_payload()
    assert json.loads(parts[0].get_payload(decode=True))["dockerfile"].startswith("FROM base")
    with tarfile.open(fileobj=io.BytesIO(parts[1].get_payload(decode=True))) as archive:
        found = {member.name: member for member in archive}
    names = [".dockerignore", "Dockerfile", "a.py", "app", "app/main.js", "keep.log", "link"]
    assert sorted(found) == [*names, "plain"]
    assert (found["a.py"].size, found["a.py"].uid, found["link"].linkname) == (300_000, 0, "a.py")


def test_what_is_ignored() -> None:
    for pattern, name, out in [
        ("a", "a", True),
        ("a", "a/b", True),
        ("a", "b/a", False),
        ("*/a", "b/a", True),
        ("**/a", "a", True),
        ("**/a", "b/c/a", True),
        ("a/**", "a/b/c", True),
        ("a?c", "abc", True),
        ("a[bc]", "ac", True),
        ("a.c", "abc", False),
        ("./a/../b/", "b", True),
        ("*\n!a", "a", False),
        ("*\n!a", "b", True),
        ("a\n!a/b", "a/b", False),
        ("a\n!a/b\na/b", "a/b", True),
        ("", "a", False),
    ]:
        assert Ignored(pattern).has(name) is out, (pattern, name)


@pytest.mark.integration
def test_a_template_of_a_dockerfile(sdk: Flavour, client: Client, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        "FROM base\nARG WHO\nENV APP=/srv/app\nWORKDIR $APP\n"
        "COPY *.txt ./\nRUN echo $WHO >> hello.txt\n"
    )
    (tmp_path / "hello.txt").write_text("hello ")
    name = f"sdk-dockerfile-{sdk.name}"
    build = client.templates.build(
        name, dockerfile=tmp_path / "Dockerfile", build_args={"WHO": "you"}
    )
    assert (build.state, build.template, build.source) == ("ready", name, "base")
    with sdk.Sandbox.create(client=client, template=name) as sandbox:
        assert sandbox.run_command("cat hello.txt; echo $APP; pwd").stdout == (
            "hello you\n/srv/app\n/srv/app\n"
        )
    (tmp_path / "Dockerfile").write_text("FROM base\nCOPY none /\n")
    with pytest.raises(InvalidRequestError, match="Dockerfile line 2"):
        client.templates.build(name, dockerfile=tmp_path / "Dockerfile")
    client.templates.delete(name)
