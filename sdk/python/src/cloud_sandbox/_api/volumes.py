"""Volumes."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import VolumeInfo, VolumeMount

from . import fields
from .call import Answer, Call, get, given, nothing, once, post, segment

_PATH = "/api/v1/volumes"


def create(name: str, *, size_mb: int | None, key: str | None) -> Call[VolumeInfo]:
    """Make a volume, once for each key."""
    return once(post(_PATH, _read, given(name=name, size_mb=size_mb)), key)


def every() -> Call[list[VolumeInfo]]:
    """Ask for all volumes."""
    return get(_PATH, _volumes)


def look(name: str) -> Call[VolumeInfo]:
    """Ask for one volume, by name or ID."""
    return get(_path(name), _read)


def delete(name: str) -> Call[None]:
    """Delete a volume."""
    return Call("DELETE", _path(name), nothing, repeatable=True)


def name_of(volume: VolumeInfo | str) -> str:
    """Return what a volume is asked for by."""
    return volume if isinstance(volume, str) else volume.volume_id


def asked(volumes: Mapping[str, VolumeInfo | str] | None) -> list[dict[str, str]] | None:
    """Return what a Sandbox is to have mounted where."""
    if volumes is None:
        return None
    return [{"volume": name_of(volume), "path": path} for path, volume in volumes.items()]


def mounted(obj: fields.Object) -> tuple[VolumeMount, ...]:
    """Decode what a Sandbox has mounted."""
    return tuple(
        VolumeMount(
            volume=fields.required_text(item, "volume"),
            volume_id=fields.text(item, "volume_id"),
            path=fields.required_text(item, "path"),
        )
        for item in fields.objects(obj, "volumes")
    )


def _path(name: str) -> str:
    return f"{_PATH}/{segment(name, 'name or ID of a volume')}"


def _read(answer: Answer) -> VolumeInfo:
    return _volume(answer.json())


def _volumes(answer: Answer) -> list[VolumeInfo]:
    return [_volume(item) for item in fields.objects(answer.json(), "volumes")]


def _volume(obj: fields.Object) -> VolumeInfo:
    return VolumeInfo(
        volume_id=fields.required_text(obj, "volume_id"),
        name=fields.required_text(obj, "name"),
        size_mb=fields.integer(obj, "size_mb") or 0,
        used_bytes=fields.integer(obj, "used_bytes"),
        files=fields.integer(obj, "files"),
        created_at=fields.time(obj, "created_at"),
    )
