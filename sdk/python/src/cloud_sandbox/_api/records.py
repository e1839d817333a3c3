"""Decoding of the API's records by the fields of their classes.

A field of a class has the name and the type of the field in the JSON object, so a new
field of a record is declared in its class alone. Fields of other types are decoded by the
caller and passed on.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from . import fields

_Record = TypeVar("_Record")
_Decoder = Callable[[fields.Object, str], object]


def _maps(obj: fields.Object, key: str) -> tuple[dict[str, str], ...]:
    return tuple(
        {name: fields.text(item, name) for name in item} for item in fields.objects(obj, key)
    )


_SIMPLE: Mapping[object, _Decoder] = {
    str: fields.optional_text,
    int: fields.integer,
    float: fields.number,
    bool: fields.flag,
    datetime: fields.time,
    date: fields.day,
    tuple[str, ...]: fields.strings,
    Mapping[str, str]: fields.texts,
    Mapping[str, object]: fields.sub_object,
    tuple[Mapping[str, str], ...]: _maps,
}


def record(cls: type[_Record], obj: fields.Object, **given: object) -> _Record:
    """Decode a record. A field that is absent or null has the default of its class.

    A field without a default must be a text that is not empty. Fields in given are
    not decoded.
    """
    values = dict(given)
    for name, required, decode in _fields(cast("Any", cls)):
        if name in given:
            continue
        value = fields.required_text(obj, name) if required else decode(obj, name)
        if value is not None:
            values[name] = value
    make: Callable[..., _Record] = cls
    return make(**values)


def records(cls: type[_Record], obj: fields.Object, key: str) -> list[_Record]:
    """Decode a field that is a list of records; empty if absent."""
    return [record(cls, item) for item in fields.objects(obj, key)]


@cache
def _fields(cls: type[object]) -> list[tuple[str, bool, _Decoder]]:
    hints = get_type_hints(cls)
    return [
        (
            field.name,
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            _decoder(hints[field.name]),
        )
        for field in dataclasses.fields(cast("Any", cls))
    ]


def _decoder(hint: object) -> _Decoder:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if len(kinds) == 1:
            return _decoder(kinds[0])
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if dataclasses.is_dataclass(hint):
        return lambda obj, key: _sub_record(cast("type[object]", hint), obj, key)
    kind = next(iter(get_args(hint)), None)
    if get_origin(hint) is tuple and dataclasses.is_dataclass(kind):
        return lambda obj, key: tuple(records(cast("type[object]", kind), obj, key))
    return _no_decoder


def _sub_record(cls: type[object], obj: fields.Object, key: str) -> object:
    value = fields.sub_object(obj, key)
    return None if value is None else record(cls, value)


def _no_decoder(_: fields.Object, key: str) -> object:
    raise TypeError(f"the field {key} has a type that its caller must decode")
