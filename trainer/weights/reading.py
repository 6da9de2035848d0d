"""A Hugging Face folder as the beginning of a run: its shape, and its weights as the flat vector, in fp32."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.models.llama.config import ModelConfig, parameter_layout
from trainer.models.llama.huggingface import UnknownModel, facts_of
from trainer.weights.errors import FolderError
from trainer.weights.numbers import F32
from trainer.weights.safetensors_file import StoredTensor, tensors_in

MAX_JSON_BYTES = 64 << 20
"""An index of the largest models that we train has some megabytes."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BUFFERS = ("rotary_emb.inv_freq",)
"""Ends of names of what old files hold besides parameters: it follows from config.json."""


class WeightsFolder:
    """A folder that transformers has written, or `peer export`.

    facts: the model section of a run that begins with it.  eos: the token that ends a text, None where none or several do.
    Raises `FolderError` where it says something that a run cannot.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        described = _json(folder / "config.json", "give a folder that transformers has saved a model in")
        try:
            self.facts: dict[str, Any] = facts_of(described)
            self.config = ModelConfig.from_mapping(self.facts)
        except (UnknownModel, ValueError) as error:
            raise FolderError(f"{folder / 'config.json'}: {error}") from error

        eos = described.get("eos_token_id")
        self.eos: int | None = eos if type(eos) is int else None

    def values(self) -> Iterator[F32]:
        """The flat vector in order, in blocks; raises `FolderError` at once or between two of them."""
        tensors = self._tensors()
        return (block for place in parameter_layout(self.config) for block in self._blocks(place.name, tensors[place.name]))

    def tensors(self) -> Iterator[F32]:
        """The flat vector in order, tensor by tensor, each flat; raises `FolderError` as `values` does."""
        tensors = self._tensors()
        for place in parameter_layout(self.config):
            yield np.concatenate(list(self._blocks(place.name, tensors[place.name])))

    def _blocks(self, name: str, tensor: StoredTensor) -> Iterator[F32]:
        for block in tensor.values():
            if not np.isfinite(block).all():
                raise FolderError(f"{self.folder}: {name} has values that are no finite numbers; take another model")
            yield block

    def _tensors(self) -> Mapping[str, StoredTensor]:
        """The model's tensors, each of the shape that config.json says."""
        found = self._found()
        if self.config.layers > len(found):  # before we list what so many layers have
            raise FolderError(
                f"{self.folder} has fewer tensors than config.json says that there are layers; copy both from one place"
            )
        layout = parameter_layout(self.config)
        if self.config.tied:
            found.pop("lm_head.weight", None)  # some writers repeat the embedding, and readers ignore it
        for place in layout:
            if place.name not in found:
                raise FolderError(f"{self.folder} has no tensor {place.name}, which its config.json asks for; copy it again")
            if found[place.name].shape != place.shape:
                raise FolderError(
                    f"{self.folder}: {place.name} has the shape {list(found[place.name].shape)}, and config.json says "
                    f"{list(place.shape)}; copy both from one place"
                )
        strange = sorted(
            name for name in set(found).difference(place.name for place in layout) if not name.endswith(BUFFERS)
        )
        if strange:
            raise FolderError(
                f"{self.folder} has a tensor {strange[0][:80]}, which a run's model has not; take a model of the Llama, "
                "Qwen2 or Qwen3 family for text generation, without adapters"
            )
        return found

    def _found(self) -> dict[str, StoredTensor]:
        """All tensors of the folder's files; of a file beside others, those that the index says it has."""
        single = self.folder / SINGLE
        try:
            if single.exists():
                return tensors_in(single)
            index = _json(self.folder / INDEX, "save the model as safetensors (save_pretrained does)")
            names = index.get("weight_map")
            if not isinstance(names, dict) or not all(_is_file_name(name) for name in names.values()):
                raise FolderError(f"{self.folder / INDEX} does not say which file holds which tensor; copy it again")
            files = {name: tensors_in(self.folder / name) for name in sorted(set(names.values()))}
        except OSError as error:
            raise FolderError(f"{error.filename}: {error.strerror}; copy the folder again") from error
        for tensor, name in names.items():
            if tensor not in files[name]:
                raise FolderError(f"{self.folder / name} has no tensor {tensor[:80]}, which the index says; copy it again")
        return {tensor: files[name][tensor] for tensor, name in names.items()}


def _is_file_name(name: Any) -> bool:
    """In the folder itself, and nowhere else."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def _json(path: Path, remedy: str) -> dict[str, Any]:
    try:
        if path.exists() and not path.is_file():
            raise FolderError(f"{path} is no file; {remedy}")  # to open a pipe would wait for ever
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise FolderError(f"{path}: {error.strerror}; {remedy}") from error
    try:
        value = json.loads(raw) if len(raw) <= MAX_JSON_BYTES else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FolderError(f"{path} is not readable as JSON; {remedy}")
    return value
