"""What a run file may leave out because something else says it.

Works on a run file's fields before they become a manifest: the manifest, which is signed and hashed, holds every number,
so two versions of this software never read one run differently, however they fill in a run file.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, TypeGuard

from pydantic import ValidationError

from protocol.run.data_section import DataSection
from protocol.run.fitting import checkpoint_chunk_size, chunk_size, ffn_width, head_count, kv_head_count
from protocol.run.manifest import STATE_BYTES_PER_PARAMETER, RoundSection
from protocol.run.model_section import ModelSection

DERIVED = {
    "founders": "the organiser",
    "model.heads": "dim",
    "model.kv_heads": "heads",
    "model.ffn": "dim",
    "chunk_parameters": "the model's size",
    "checkpoint_chunk_bytes": "the model's size",
    "inner.lr": "what is trained",
    "total_tokens": "the model's size",
    "total_rounds": "what is trained",
}
"""What follows from what."""

TOKENS_A_PARAMETER = 20
"""Tokens that a model reads from scratch (Hoffmann et al. 2022, "Training compute-optimal large language models")."""
FEWEST_ROUNDS = 200
"""Rounds of one member that a run from scratch has at least: small models learn for longer than their size demands."""
TUNING_ROUNDS = 100
"""Rounds of a run that begins with weights."""
ROLLOUT_ROUNDS = 200
"""Rounds that learn from rollouts."""
TUNING_RATE = 1e-5
"""Peak learning rate of a run that begins with weights: the rate of one from scratch would destroy what they know."""


def derived(fields: Mapping[str, Any], *, tunes: bool = False) -> dict[str, Any]:
    """`fields` with what is missing from them; where they make no sense, what depends on them stays missing.

    tunes: the run begins with weights that were trained before.
    """
    filled = dict(fields)
    inner = filled.get("inner", {})
    if tunes and isinstance(inner, dict):
        filled["inner"] = {"lr": TUNING_RATE, **inner}
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
    if "total_tokens" not in filled and "total_rounds" not in filled:
        filled |= _total(filled, parameters, tunes=tunes)
    return filled


def _total(fields: Mapping[str, Any], parameters: int, *, tunes: bool) -> dict[str, int]:
    """The total of a run whose file says none: tokens of a model from scratch, rounds where it learns more."""
    if isinstance(rl := fields.get("rl"), dict):
        warm = rl.get("warm_rounds", 0)
        return {"total_rounds": ROLLOUT_ROUNDS + (warm if _is_size(warm, 1_000_000) else 0)}
    if tunes:
        return {"total_rounds": TUNING_ROUNDS}
    data, rounds = fields.get("data", {}), fields.get("rounds", {})
    sizes: list[Any] = [
        section.get(name, kind.model_fields[name].default) if isinstance(section, dict) else None
        for section, kind, name in (
            (data, DataSection, "sequence_length"),
            (data, DataSection, "sequences_per_step"),
            (rounds, RoundSection, "inner_steps"),
        )
    ]
    read = prod(sizes) if all(_is_size(size, 1 << 17) for size in sizes) else 1
    return {"total_tokens": max(TOKENS_A_PARAMETER * parameters, FEWEST_ROUNDS * read)}


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
