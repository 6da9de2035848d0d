"""Writer of a Hugging Face folder with a run's parameters, from a stream of the flat vector.

The tensors fill the files in the order of the flat vector, so the vector itself is written, cut where a file ends.  One
block is in memory at a time.  The caller makes the folder and gives it its final name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.models.llama.config import ModelConfig, ParameterPlace, parameter_layout
from trainer.models.llama.huggingface import Ends, config_json, generation_json
from trainer.weights.numbers import F32, ExportFormat, written
from trainer.weights.safetensors_file import header_of

SHARD_BYTES = 5_000_000_000
"""Most bytes of tensors in one file, unless a single tensor is larger."""


def write_folder(
    folder: Path,
    config: ModelConfig,
    values: Iterable[F32],
    form: ExportFormat,
    *,
    context: int,
    eos: Ends,
    generation: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write config.json, generation_config.json and the weights into an empty folder; every file is synced to disk.

    values: the flat vector in order, in blocks of any size.  context: tokens that the model was trained to read, used if
    `config` has no context.  eos: end tokens of a text.  generation: contents of the model's own generation_config.json.
    """
    _write_json(folder / "config.json", config_json(config, form.torch_name, context=context, eos=eos))
    _write_json(folder / "generation_config.json", generation_json(eos, generation))
    shards = _shards(parameter_layout(config), form, shard_bytes)
    names = [_shard_name(number, len(shards)) for number in range(len(shards))]
    source = _Source(values)
    for name, places in zip(names, shards, strict=True):
        with (folder / name).open("wb") as file:
            file.write(header_of(places, form))
            for block in source.take(sum(place.count for place in places)):
                file.write(written(block, form))
            file.flush()
            os.fsync(file.fileno())
    assert source.is_empty(), "more values than parameters"
    if len(shards) > 1:
        index = {place.name: name for name, places in zip(names, shards, strict=True) for place in places}
        size = config.parameters * form.width
        described = {"total_parameters": config.parameters, "total_size": size}
        _write_json(folder / "model.safetensors.index.json", {"metadata": described, "weight_map": index})


def _shards(layout: Sequence[ParameterPlace], form: ExportFormat, most: int) -> list[list[ParameterPlace]]:
    """Return the tensors of each file."""
    shards: list[list[ParameterPlace]] = [[]]
    size = 0
    for place in layout:
        added = place.count * form.width
        if shards[-1] and size + added > most:
            shards.append([])
            size = 0
        shards[-1].append(place)
        size += added
    return shards


def _shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


class _Source:
    """Blocks of a stream, cut where the caller wants."""

    def __init__(self, values: Iterable[F32]) -> None:
        self._blocks = iter(values)
        self._left: F32 | None = None

    def take(self, count: int) -> Iterator[F32]:
        """Yield the next `count` values."""
        while count:
            block = self._left if self._left is not None else next(self._blocks)
            part, rest = block[:count], block[count:]
            self._left = rest if len(rest) else None
            count -= len(part)
            yield part

    def is_empty(self) -> bool:
        """Return True if no values are left."""
        return self._left is None and next(self._blocks, None) is None
