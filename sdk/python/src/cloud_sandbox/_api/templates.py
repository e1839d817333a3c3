"""Templates and how they are built."""

from __future__ import annotations

import base64
import json
import tarfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from cloud_sandbox.models import (
    BuildInfo,
    BuildLine,
    RemovedTemplates,
    TemplateFile,
    TemplateInfo,
)

from . import failures, fields
from .call import (
    Answer,
    AsyncData,
    Call,
    Parts,
    Path,
    Stream,
    body_of,
    copied,
    get,
    given,
    nothing,
    once,
    post,
    segment,
    true,
)
from .context import ARCHIVE_END, Archive, padding, read
from .records import record, records
from .sse import Event

_PATH = "/api/v1/templates"
# Read timeout of an upload: the server answers after it has stored the archive.
_ARCHIVE_SECONDS = 600.0
# Files of more bytes in total are sent as an archive: a JSON body has at most 8 MiB.
_INLINE_BYTES = 1 << 20
# The user that Sandboxes have by default.
_USER_ID = 1000


def build(
    template: str,
    source: str | None,
    *,
    dockerfile: Path | None,
    context: Path | None,
    build_args: Mapping[str, str] | None,
    archive: AsyncData | None,
    packages: Sequence[str] | None,
    files: Sequence[TemplateFile] | None,
    env: Mapping[str, str] | None,
    start: str | None,
    ready: str | None,
    bare: bool,
    force: bool,
    key: str | None,
) -> Call[BuildInfo]:
    """Start a build; requests with equal keys start one build."""
    text = None
    if dockerfile is not None:
        recipe = read(dockerfile, context)
        text, sent = recipe.text, recipe.archive
        archive = archive if sent is None else cast("AsyncData", sent)
    elif context is not None:
        raise ValueError("context is the folder of a Dockerfile: pass dockerfile too")
    body = given(
        template=template,
        source=source,
        dockerfile=text,
        build_args=copied(build_args),
        packages=None if packages is None else list(packages),
        files=None if files is None else [_file(file) for file in files],
        env=copied(env),
        start=start,
        ready=ready,
        bare=true(bare),
        force=true(force),
    )
    uploads: dict[str, bytes | Stream] = {}
    if files is not None and sum(map(_size, files)) > _INLINE_BYTES:
        del body["files"]
        uploads["files"] = Stream(Archive(_packed(files)))
    if archive is not None:
        uploads["archive"] = body_of(archive)
    if not uploads:
        return once(post(_PATH, _one_build, body), key)
    call = _form(body, uploads)
    # The server buffers the body of a request with a key. So an archive gets a key only
    # if the caller gave one.
    return call if key is None else once(call, key)


def _size(file: TemplateFile) -> int:
    return len(file.content)


def _packed(files: Sequence[TemplateFile]) -> Iterator[bytes]:
    """Pack files that are too large for JSON."""
    for file in files:
        content = file.content if isinstance(file.content, bytes) else file.content.encode()
        info = tarfile.TarInfo(file.path.lstrip("/"))
        info.size = len(content)
        mode = 0o644 if file.mode is None else file.mode
        info.mode = mode if isinstance(mode, int) else int(mode, 8)
        info.uid = info.gid = _USER_ID if file.owner == "user" else 0
        yield info.tobuf(tarfile.PAX_FORMAT)
        yield content
        yield padding(info.size)
    yield ARCHIVE_END


def _file(file: TemplateFile) -> dict[str, object]:
    raw = isinstance(file.content, bytes)
    return given(
        path=file.path,
        content=None if raw else file.content,
        content_base64=base64.b64encode(file.content).decode()
        if isinstance(file.content, bytes)
        else None,
        mode=f"{file.mode:04o}" if isinstance(file.mode, int) else file.mode,
        owner=file.owner,
    )


def _form(body: Mapping[str, object], uploads: Mapping[str, bytes | Stream]) -> Call[BuildInfo]:
    mark = uuid.uuid4().hex
    parts: list[bytes | Stream] = [
        (
            f'--{mark}\r\nContent-Disposition: form-data; name="template"\r\n'
            f"Content-Type: application/json\r\n\r\n{json.dumps(body)}\r\n"
        ).encode()
    ]
    for name, content in uploads.items():
        head = (
            f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        parts += [head.encode(), content, b"\r\n"]
    parts.append(f"--{mark}--\r\n".encode())
    return Call(
        "POST",
        _PATH,
        _one_build,
        content=Parts(parts),
        headers={"Content-Type": f"multipart/form-data; boundary={mark}"},
        read_seconds=_ARCHIVE_SECONDS,
    )


def every() -> Call[list[TemplateInfo]]:
    """Ask for all templates."""
    return get(_PATH, _templates)


def look(template: str) -> Call[TemplateInfo]:
    """Ask for a template with its versions."""
    return get(_path(template), lambda answer: record(TemplateInfo, answer.json()))


def delete(template: str) -> Call[RemovedTemplates]:
    """Remove a template, a tag or a version."""
    return Call("DELETE", _path(template), _removed, repeatable=True)


def builds() -> Call[list[BuildInfo]]:
    """Ask for all builds."""
    return get("/api/v1/builds", _builds)


def look_at_build(build_id: str) -> Call[BuildInfo]:
    """Ask for the current state of a build."""
    return get(_build_path(build_id), _one_build)


def cancel(build_id: str) -> Call[BuildInfo]:
    """Cancel a build."""
    return Call("DELETE", _build_path(build_id), _one_build)


def follow(build_id: str, start: int) -> Call[None]:
    """Follow the log, as events."""
    query = {"from": str(start), "follow": "true"}
    headers = {"Accept": "text/event-stream"}
    return get(f"{_build_path(build_id)}/log", nothing, query, headers=headers)


def line_of(event: Event) -> BuildLine:
    """Decode a line of a log."""
    obj = fields.parse_object(event.data)
    return BuildLine(
        text=fields.text(obj, "text"),
        next_offset=fields.integer(obj, "next_offset") or 0,
        at=fields.time(obj, "at"),
    )


def build_of(event: Event) -> BuildInfo:
    """Decode the build in a ``start`` or ``end`` event."""
    return _build(fields.parse_object(event.data))


def _templates(answer: Answer) -> list[TemplateInfo]:
    return records(TemplateInfo, answer.json(), "templates")


def _removed(answer: Answer) -> RemovedTemplates:
    return record(RemovedTemplates, answer.json())


def _builds(answer: Answer) -> list[BuildInfo]:
    return [_build(item) for item in fields.objects(answer.json(), "builds")]


def _one_build(answer: Answer) -> BuildInfo:
    return _build(answer.json())


def _build(obj: fields.Object) -> BuildInfo:
    error = fields.sub_object(obj, "error")
    return record(BuildInfo, obj, error=None if error is None else failures.of_object(error))


def _path(template: str) -> str:
    return f"{_PATH}/{segment(template, 'template')}"


def _build_path(build_id: str) -> str:
    return f"/api/v1/builds/{segment(build_id, 'build ID')}"
