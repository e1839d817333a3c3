"""Volumes."""

from __future__ import annotations

from collections.abc import Mapping

from cloud_sandbox.models import VolumeInfo

from .call import Answer, Call, get, given, nothing, once, post, segment
from .records import record, records

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


def _path(name: str) -> str:
    return f"{_PATH}/{segment(name, 'name or ID of a volume')}"


def _read(answer: Answer) -> VolumeInfo:
    return record(VolumeInfo, answer.json())


def _volumes(answer: Answer) -> list[VolumeInfo]:
    return records(VolumeInfo, answer.json(), "volumes")
