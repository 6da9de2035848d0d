"""What a run file may leave out because something else says it.

Works on a run file's fields before they become a manifest: the manifest, which is signed and hashed, holds every number,
so two versions of this software never read one run differently, however they fill in a run file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import ValidationError

from protocol.run.fitting import checkpoint_chunk_size, chunk_size, ffn_width, head_count, kv_head_count
from protocol.run.manifest import STATE_BYTES_PER_PARAMETER
from protocol.run.model_section import ModelSection

DERIVED = {
    "founders": "the organiser",
    "model.heads": "dim",
    "model.kv_heads": "heads",
    "model.ffn": "dim",
    "chunk_parameters": "the model's size",
    "checkpoint_chunk_bytes": "the model's size",
}
"""What follows from what."""


def derived(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with what is missing from them; where they make no sense, what depends on them stays missing."""
    filled = dict(fields)
    if "organiser" in filled:
        filled.setdefault("founders", [filled["organiser"]])
    section = filled.get("model", {})
    if not isinstance(section, dict):
        return filled
    filled["model"] = model = _with_widths(section)
    try:
        parameters = ModelSection.model_validate(model).parameters
    except ValidationError:
        return filled
    filled.setdefault("chunk_parameters", chunk_size(parameters))
    filled.setdefault("checkpoint_chunk_bytes", checkpoint_chunk_size(STATE_BYTES_PER_PARAMETER * parameters))
    return filled


def _with_widths(section: Mapping[str, Any]) -> dict[str, Any]:
    """A model section with heads, kv_heads and ffn."""
    model = dict(section)
    dim = model.get("dim", ModelSection.model_fields["dim"].default)
    if _is_size(dim, 1 << 15):
        model.setdefault("ffn", ffn_width(dim))
        if (count := head_count(dim)) is not None:
            model.setdefault("heads", count)
    if _is_size(heads := model.get("heads"), 512):
        model.setdefault("kv_heads", kv_head_count(heads))
    return model


def _is_size(value: Any, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit
