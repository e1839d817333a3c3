"""Reading JSON objects with care: a field of another type is a ProtocolError.

A field that is absent or null has its default, and unknown fields are left
alone, so that this version works with older and newer servers.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta, timezone

from cloud_sandbox.errors import ProtocolError

Object = Mapping[str, object]

# RFC 3339 with any number of digits after the seconds; datetime takes six.
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|z|[+-]\d\d:\d\d)")


def parse_object(content: bytes | str) -> Object:
    """Decode a JSON object; anything else is a ProtocolError."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as err:
        raise ProtocolError("the server's answer is not JSON") from err
    return as_object(value, "the answer")


def as_object(value: object, name: str) -> Object:
    """Return value as an object; anything else is a ProtocolError."""
    if not isinstance(value, dict):
        raise _wrong(name, "an object")
    return value


def text(obj: Object, key: str, default: str = "") -> str:
    """Return a string field."""
    value = obj.get(key)
    if value is None:
        return default
    if not isinstance(value, str):
        raise _wrong(key, "a string")
    return value


def required_text(obj: Object, key: str) -> str:
    """Return a string field that must be there and not empty."""
    value = text(obj, key)
    if not value:
        raise ProtocolError(f"the server's answer has no {key!r}")
    return value


def optional_text(obj: Object, key: str) -> str | None:
    """Return a string field, or None."""
    return None if obj.get(key) is None else text(obj, key)


def decoded(obj: Object, key: str) -> bytes | None:
    """Return the bytes of a field in base64, or None."""
    value = optional_text(obj, key)
    if value is None:
        return None
    try:
        # Programs print it with line ends.
        return base64.b64decode("".join(value.split()), validate=True)
    except ValueError as err:
        raise _wrong(key, "base64") from err


def flag(obj: Object, key: str) -> bool:
    """Return a boolean field; false if absent."""
    value = obj.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise _wrong(key, "true or false")
    return value


def number(obj: Object, key: str) -> float | None:
    """Return a number field, or None."""
    value = obj.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(key, "a number")
    return value


def integer(obj: Object, key: str) -> int | None:
    """Return a whole number field, or None."""
    value = number(obj, key)
    if value is None:
        return None
    if isinstance(value, float) and not value.is_integer():
        raise _wrong(key, "a whole number")
    return int(value)


def header_integer(headers: Mapping[str, str], name: str) -> int:
    """Return a header that is a whole number; 0 if absent."""
    value = headers.get(name)
    if value is None:
        return 0
    if not (value.isascii() and value.isdecimal()):
        raise _wrong(name, "a whole number")
    return int(value)


def sub_object(obj: Object, key: str) -> Object | None:
    """Return an object field, or None."""
    value = obj.get(key)
    return None if value is None else as_object(value, key)


def objects(obj: Object, key: str) -> list[Object]:
    """Return a field that is a list of objects; empty if absent."""
    value = obj.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong(key, "a list")
    return [as_object(item, key) for item in value]


def strings(obj: Object, key: str) -> tuple[str, ...]:
    """Return a field that is a list of strings; empty if absent."""
    value = obj.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, "a list of strings")
    return tuple(value)


def integers(obj: Object, key: str) -> tuple[int, ...]:
    """Return a field that is a list of whole numbers; empty if absent."""
    value = obj.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise _wrong(key, "a list of whole numbers")
    return tuple(value)


def texts(obj: Object, key: str) -> dict[str, str]:
    """Return a field that maps strings to strings; empty if absent."""
    value = sub_object(obj, key) or {}
    return {k: text(value, k) for k in value}


def time(obj: Object, key: str) -> datetime | None:
    """Return an RFC 3339 field in UTC, or None."""
    value = text(obj, key)
    if not value:
        return None
    match = _TIME.fullmatch(value)
    if match is None:
        raise _wrong(key, "a time")
    seconds, fraction, zone = match.groups()
    try:
        at = datetime.fromisoformat(seconds + ("+00:00" if zone in "Zz" else zone))
        at += timedelta(microseconds=int((fraction or "0")[:6].ljust(6, "0")))
        return at.astimezone(timezone.utc)
    except (ValueError, OverflowError) as err:
        raise _wrong(key, "a time") from err


def day(obj: Object, key: str) -> date | None:
    """Return a date field, or None."""
    value = text(obj, key)
    try:
        return date.fromisoformat(value) if value else None
    except ValueError as err:
        raise _wrong(key, "a day") from err


def _wrong(name: str, want: str) -> ProtocolError:
    return ProtocolError(f"the server's answer has a {name!r} that is not {want}")
