"""Base class of the manifest sections that the trainer reads, with strict checks of fields and no heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class SectionFields:
    """Section of the manifest, with one attribute for each field."""

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section that these fields describe.

        Raises ValueError for missing fields without a default, and for unknown fields, which may mean a different run.
        """
        known = {field.name: field.default is MISSING for field in fields(cls)}
        needed = {name for name, is_needed in known.items() if is_needed}
        unknown, missing = sorted(set(section) - set(known)), sorted(needed - set(section))
        if unknown or missing:
            raise ValueError(f"{cls.__name__}: unknown fields {unknown}, missing fields {missing}")
        return cls(**section)
