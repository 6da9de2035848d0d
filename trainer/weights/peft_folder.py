"""Adapters in folders of PEFT: the factors of an adapter run as other programs read them, and folders that PEFT has saved.

Such a folder has an adapter_config.json and an adapter_model.safetensors (https://huggingface.co/docs/peft, 0.21). A run's
adapter is plain LoRA on all projections of a kind in each layer. A folder that computes anything else is refused, with the
name of the field or tensor. Pickled weights (adapter_model.bin) are never read, because reading them executes code.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from protocol.formats.adapter import PROJECTIONS, AdapterConfig, adapter_layout
from protocol.formats.model import ModelConfig
from trainer.data.strict_json import parsed
from trainer.weights.folder import json_in, write_json
from trainer.weights.safetensors_file import (
    F32,
    ExportFormat,
    FolderError,
    StoredTensor,
    ValueStream,
    finite_values,
    tensors_in,
    write_tensors,
)

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
"""Beginning of each tensor's name, before the name in `adapter_layout`: the wrappers of PEFT around a model."""
MERGE = "merge it into its base (PEFT: merge_and_unload) and begin with that model, or use another adapter"
"""Remedy for an adapter that no run can go on with."""

_WRITTEN: Mapping[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "auto_mapping": None,
    "revision": None,
    "inference_mode": True,
    "lora_dropout": 0.0,
    "init_lora_weights": True,
    "fan_in_fan_out": False,
    "bias": "none",
    "use_rslora": False,
    "use_dora": False,
    "modules_to_save": None,
    "layers_to_transform": None,
    "layers_pattern": None,
    "rank_pattern": {},
    "alpha_pattern": {},
}
"""Fields of each file that we write besides its numbers and names. Recent fields are left out, because old versions of PEFT
refuse a file with a field that they do not know; their defaults are what we mean."""
_MUST_BE: Mapping[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_qalora": False,
    "use_bdlora": None,
    "bias": "none",
    "lora_bias": False,
    "fan_in_fan_out": False,
    "rank_pattern": {},
    "alpha_pattern": {},
    "modules_to_save": None,
    "exclude_modules": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
}
"""Fields for which a run's adapter supports only this value; null, an empty list or a missing field means the same value."""
_PLAIN_STARTS = (True, False, "gaussian", "eva", "orthogonal", "mica")
"""Values of init_lora_weights that leave the base as it is. The others (pissa, olora, corda, loftq, lora_ga) change it."""
_PASSED_OVER = {
    *("r", "lora_alpha", "use_rslora", "target_modules", "init_lora_weights"),  # read otherwise
    *("base_model_name_or_path", "revision", "peft_version", "auto_mapping", "inference_mode", "runtime_config"),
    *("lora_dropout", "velora_config", "layers_pattern", "ensure_weight_tying", "qalora_group_size"),
    *("eva_config", "corda_config", "loftq_config", "lora_ga_config", "megatron_config", "megatron_core"),
}
"""Fields that change nothing in what a trained adapter computes, if the fields above have their values."""


def write_peft_folder(
    folder: Path,
    model: ModelConfig,
    adapter: AdapterConfig,
    values: Iterable[F32],
    form: ExportFormat,
    *,
    base_name: str,
) -> None:
    """Write adapter_config.json and adapter_model.safetensors into an empty folder, and sync both files to disk.

    values: the flat vector of `adapter_layout` in order, in blocks of any size. base_name: the base's name on a hub, or its
    path, with which other programs find it. The caller makes the folder and gives it its final name.
    """
    alpha = int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha  # an integer in files of PEFT
    numbers = {"r": adapter.rank, "lora_alpha": alpha}
    names = {"base_model_name_or_path": base_name, "target_modules": list(PROJECTIONS[adapter.targets])}
    write_json(folder / CONFIG, {**_WRITTEN, **numbers, **names})
    stream = ValueStream(values)
    places = [replace(place, name=PREFIX + place.name) for place in adapter_layout(model, adapter)]
    write_tensors(folder / WEIGHTS, places, form, stream)
    stream.check_end()


class PeftFolder:
    """Folder written by PEFT or by `write_peft_folder`, with an adapter of `model`.

    adapter: the adapter section of a run that goes on with the folder; the scale alpha / sqrt(r) of rsLoRA is said by its
    alpha, which is then alpha * sqrt(r). base_name: the base that the folder names, or an empty text; a stranger may have
    written it. Raises `FolderError` for an adapter that no run supports or that has tensors of other sizes, before any
    memory of their sizes is allocated.
    """

    def __init__(self, folder: Path, model: ModelConfig) -> None:
        self.folder, self.model = folder, model
        path = folder / CONFIG
        described = json_in(path, "give a folder in which PEFT has saved an adapter", partial(parsed, has_nan=False))
        _check_fields(path, described)
        self.adapter = _adapter_in(path, described, _targets_in(path, described.get("target_modules"), model))
        name = described.get("base_model_name_or_path")
        self.base_name = name if isinstance(name, str) else ""
        self._stored = self._tensors()

    def values(self) -> Iterator[F32]:
        """Yield the flat vector of `adapter_layout` in order, in blocks. Raises `FolderError` between two blocks."""
        for place in adapter_layout(self.model, self.adapter):
            yield from finite_values(place.name, self._stored[PREFIX + place.name], "use another adapter")

    def _tensors(self) -> Mapping[str, StoredTensor]:
        """Return the adapter's tensors, each checked against the shape that the model requires."""
        path = self.folder / WEIGHTS
        if not os.path.lexists(path) and os.path.lexists(self.folder / PICKLE):
            raise FolderError(
                f"{self.folder} has its weights in {PICKLE}, which may execute code when it is read; save the adapter as "
                "safetensors (save_pretrained does)"
            )
        try:
            found = tensors_in(path)
        except OSError as error:
            raise FolderError(f"{path}: {error.strerror}; copy the folder again") from error
        others = dict(found)
        for place in adapter_layout(self.model, self.adapter):
            tensor = others.pop(PREFIX + place.name, None)
            if tensor is None:
                raise FolderError(
                    f"{path} has no tensor {PREFIX}{place.name}, which {CONFIG} and the base require; copy the folder "
                    f"again, or use the adapter's own base{self._own_base()}"
                )
            if tensor.shape != place.shape:
                raise FolderError(
                    f"{path}: {place.name} has the shape {list(tensor.shape)}, but {CONFIG} and the base give "
                    f"{list(place.shape)}; use the adapter's own base{self._own_base()}"
                )
        if others:
            raise FolderError(
                f"{path} has a tensor {min(others)[:80]}, which a run's adapter of this base does not have; use the "
                f"adapter's own base{self._own_base()}, or {MERGE}"
            )
        return found

    def _own_base(self) -> str:
        return f" ({self.base_name!r:.80})" if self.base_name else ""


def _check_fields(path: Path, described: Mapping[str, Any]) -> None:
    """Raise `FolderError` for a field that gives an adapter a meaning beyond plain LoRA."""
    for name, only in _MUST_BE.items():
        if (value := described.get(name)) not in (None, only, []):
            raise FolderError(f"{path}: {name} is {value!r:.40}, and a run's adapter has only {only!r}; {MERGE}")
    if (start := described.get("init_lora_weights", True)) not in _PLAIN_STARTS:
        raise FolderError(
            f"{path}: init_lora_weights is {start!r:.40}, so the adapter belongs to a changed base; save it as plain LoRA "
            "(PEFT: path_initial_model_for_weight_conversion), or use another adapter"
        )
    for name, value in described.items():
        if name not in _MUST_BE and name not in _PASSED_OVER and not (value in (None, [], {}) or value is False):
            raise FolderError(
                f"{path} has a field {name!r:.40}, which plain LoRA does not have; {MERGE}, or remove the field if the "
                "adapter computes the same without it"
            )


def _targets_in(path: Path, listed: Any, model: ModelConfig) -> str:
    """Return the set of projections that target_modules names.

    As in PEFT, a name stands for all modules with this name or with names that end with a dot and this name.
    """
    if listed == "all-linear":
        return "all"
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise FolderError(
            f"{path}: target_modules is {listed!r:.40}, but must be a list of modules' names; write such a list"
        )
    ends, wanted = dict[str, set[str]](), set(listed)
    for place in adapter_layout(model, AdapterConfig()):
        module = place.name.rpartition(".lora_")[0]
        parts = module.split(".")
        ends[module] = {".".join(parts[start:]) for start in range(len(parts))}
    if strange := wanted.difference(*ends.values()):
        raise FolderError(
            f"{path}: target_modules names {min(strange)!r:.60}, and a run's adapter has factors on the projections of the "
            f"base's layers only; {MERGE}"
        )
    chosen = {module for module, names in ends.items() if names & wanted}
    for targets, names in PROJECTIONS.items():
        if chosen == {module for module in ends if module.endswith(names)}:
            return targets
    sets = ", or ".join(" ".join(names) for names in PROJECTIONS.values())
    raise FolderError(
        f"{path}: target_modules is {sorted(wanted)!r:.60}, and a run's adapter has factors on {sets}, each in all layers; "
        f"{MERGE}"
    )


def _adapter_in(path: Path, described: Mapping[str, Any], targets: str) -> AdapterConfig:
    rank, alpha, is_stabilised = described.get("r", 8), described.get("lora_alpha", 8), described.get("use_rslora")
    if is_stabilised not in (None, True, False):
        raise FolderError(f"{path}: use_rslora is {is_stabilised!r:.40}, but must be true or false; copy the file again")
    try:
        adapter = AdapterConfig.from_mapping({"rank": rank, "alpha": alpha, "targets": targets})
        return adapter.changed(alpha=adapter.alpha * math.sqrt(adapter.rank)) if is_stabilised else adapter
    except ValueError as error:
        flaw = str(error).removeprefix(f"{AdapterConfig.__name__}: ")
        raise FolderError(f"{path}: {flaw}; {MERGE}") from error
