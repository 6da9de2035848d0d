"""Base of the manifest's sections, with one check and one encoding for all readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails

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


RULES = {
    "string_type": "text in quotes",
    "string_too_short": "text of at least {min_length} characters",
    "string_too_long": "text of at most {max_length} characters",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list in brackets",
    "dict_type": "a section with fields",
    "model_type": "a section with fields",
    "model_attributes_type": "a section with fields",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "multiple_of": "a multiple of {multiple_of}",
}
"""Rules that follow "it must be", by pydantic's name for the error about them."""


def rule_of(error: ErrorDetails) -> str:
    """Return the rule that a value breaks, in words that follow "it must be"."""
    found = error.get("ctx", {})
    context = {name: int(each) if isinstance(each, float) and each.is_integer() else each for name, each in found.items()}
    if error["type"] == "string_too_short" and context["min_length"] == 1:
        return "text of at least 1 character"
    rule = RULES.get(error["type"])
    return error["msg"] if rule is None else rule.format(**context).replace("'", '"')


def _flaw(error: ErrorDetails) -> str:
    """Return a clause about one field of a section."""
    place = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        return f"{place} is not a field"
    if error["type"] in RULES:
        return f"{place} is {shortened(error['input'])}; it must be {rule_of(error)}"
    return f"{place}: {error['msg']}".removeprefix(": ").removeprefix("Value error, ")


MAX_VALUE = 40


def shortened(value: Any) -> str:
    """Return a value as Python writes it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


Problems = Iterator[tuple[str, str]]
"""Numbers that do not fit together: the dotted names of the fields involved, and one sentence with the remedy."""


class Misfit(ValueError):
    """Numbers that are allowed one by one, but not together."""

    def __init__(self, problems: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


class Section(Ordered):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation.

    LATER: fields added after the first runs.  A later field that has its default is not written, so a run that does not use
    it keeps its encoding and its ID.  A later field that is written with its default is refused, because each manifest has
    only one valid encoding.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    def _problems(self) -> Problems:
        """Yield the numbers that do not fit together; a section adds its own problems to the problems of its base."""
        yield from ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if found := list(self._problems()):
            raise Misfit(found)
        return self

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
            raise ValueError(f"{cls.__name__}: {'; '.join(map(_flaw, error.errors()))}") from error

    def changed(self, **fields: Any) -> Self:
        """Return this section with other values in some fields.  Raises ValueError."""
        return self.from_mapping({**vars(self), **fields})
