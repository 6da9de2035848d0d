"""A section of the manifest, and how a section grows without changing the runs that there are."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from protocol.wire.body import Body


class Section(Body):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation.

    LATER: fields that came after the first runs.  One that has its default is not written, so a run that does not use it
    keeps its encoding and its ID; one that is written out all the same is refused, as its encoding is not the only one.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields, known = handler(self), type(self).model_fields
        return {name: value for name, value in fields.items() if name not in self.LATER or value != known[name].default}
