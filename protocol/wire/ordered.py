"""Models whose fields are kept in the order of their names, so that encoding one in canonical form needs no sorting."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from protocol.wire import canonical


class Ordered(BaseModel):
    """Frozen and strict: a field is of its very type, and there are no others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Fields are kept, and so given out, in the order of their names.

        One wrong item of a list is enough: nobody reads what is wrong with the 4095 others.
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

    def encode(self) -> bytes:
        """Canonical msgpack of the fields."""
        return canonical.encode_sorted(self.model_dump(mode="python"))
