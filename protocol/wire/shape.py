"""How large a message of a class can be, as its fields' limits say.

What is longer, or has more values, is refused before it is decoded.  It follows from the schema, so a message has its
limit as soon as its fields have theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

HEAD_BYTES = 5
"""Of a string, a list or a map, at most."""
NUMBER_BYTES = 9
UTF8_BYTES = 4


@dataclass(frozen=True)
class Shape:
    """The largest encoding: bytes, and values beneath it, keys included.  Infinite where the schema sets no limit."""

    bytes: float
    values: float


_UNLIMITED = Shape(math.inf, math.inf)


@cache
def largest(cls: type[BaseModel]) -> Shape:
    """The largest message of a class."""
    size, values = float(HEAD_BYTES), 0.0
    for name, field in cls.model_fields.items():
        shape = _largest(field.annotation, field.metadata)
        size += HEAD_BYTES + len(name) + shape.bytes
        values += 2 + shape.values
    return Shape(size, values)


def _largest(annotation: Any, metadata: Iterable[Any]) -> Shape:
    """Of a value of this type.  metadata: what limits it."""
    limits = [part for item in metadata for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _largest(arguments[0], [*arguments[1:], *limits])
    if origin in (Union, UnionType):
        return _either([_largest(each, limits) for each in arguments])
    if origin is Literal:
        return _either([Shape(HEAD_BYTES + UTF8_BYTES * len(str(each)), 0) for each in arguments])
    length = min((limit.max_length for limit in limits if isinstance(limit, MaxLen)), default=math.inf)
    if origin is list:
        item = _largest(arguments[0], [])
        return Shape(HEAD_BYTES + length * item.bytes, length * (1 + item.values))
    if not isinstance(annotation, type):
        return _UNLIMITED
    return _simple(annotation, length, limits)


def _simple(cls: type, length: float, limits: list[Any]) -> Shape:
    if issubclass(cls, BaseModel):
        return largest(cls)
    if issubclass(cls, Enum):
        return Shape(HEAD_BYTES + max(UTF8_BYTES * len(str(each.value)) for each in cls), 0)
    if issubclass(cls, NoneType | bool | int | float):
        return Shape(NUMBER_BYTES, 0)
    if issubclass(cls, bytes):
        return Shape(HEAD_BYTES + length, 0)
    if issubclass(cls, str):
        pattern = next((limit.pattern for limit in limits if getattr(limit, "pattern", None)), "")
        return Shape(HEAD_BYTES + length * (1 if pattern and pattern.isascii() and "." not in pattern else UTF8_BYTES), 0)
    return _UNLIMITED


def _either(shapes: list[Shape]) -> Shape:
    return Shape(max(shape.bytes for shape in shapes), max(shape.values for shape in shapes))
