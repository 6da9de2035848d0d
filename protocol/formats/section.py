"""Base of the manifest's sections, with one check and one encoding for all who read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import CoreSchema

PRINTABLE = r"^[^\p{Cc}\p{Zl}\p{Zp}\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]*$"
"""Pattern of text without characters that move a terminal's cursor or turn its direction."""


class Ordered(BaseModel):
    """Frozen and strict model with its fields in the order of their names, so that canonical encoding needs no sorting.

    Each field has exactly its declared type, and no other fields are allowed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Keep the fields in the order of their names, so that they are dumped in this order.

        Validation of a list stops at the first wrong item: errors about up to 4095 further items would be useless.
        """
        schema = handler(source)
        inner: Any = schema
        while inner["type"] != "model-fields":
            inner = inner["schema"]
        inner["fields"] = dict(sorted(inner["fields"].items()))
        for part in inner["fields"].values():
            while part is not None:
                if part.get("type") == "list":
                    part["fail_fast"] = True
                part = part.get("schema")
        return schema


@dataclass(frozen=True)
class ManifestProblem:
    """Numbers that do not fit.  fields: dotted names of the fields involved.  text: one sentence with a value that fits."""

    fields: tuple[str, ...]
    text: str


class Misfit(ValueError):
    """Numbers that are allowed one by one, but not together."""

    def __init__(self, problems: Sequence[ManifestProblem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = tuple(problems)


def refuse(problems: Iterator[ManifestProblem]) -> None:
    """Raise `Misfit` with all of these problems, if there are any."""
    if found := list(problems):
        raise Misfit(found)


class Section(Ordered):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation.

    LATER: fields added after the first runs.  A later field that has its default is not written, so a run that does not use
    it keeps its encoding and its ID.  A later field that is written with its default is refused, because each manifest has
    only one valid encoding.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields, known = handler(self), type(self).model_fields
        return {name: value for name, value in fields.items() if name not in self.LATER or value != known[name].default}

    @classmethod
    def from_mapping(cls, fields: Mapping[str, Any]) -> Self:
        """Return the section that these fields describe.  Raises ValueError with one line that names each wrong field."""
        try:
            return cls.model_validate(dict(fields))
        except ValidationError as error:
            flaws = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in error.errors())
            raise ValueError(f"{cls.__name__}: {'; '.join(flaws)}") from error

    def changed(self, **fields: Any) -> Self:
        """Return this section with other values in some fields.  Raises ValueError."""
        return self.from_mapping({**vars(self), **fields})
