"""Frozen model below the factors of an adapter run, read from the run's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from kernels.quantizer import QuantizedMatrix, quantize
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import BASE_PREFIX
from protocol.formats.model import ParameterPlace, parameter_layout
from trainer.config import TrainingConfig
from trainer.models.llama.model import FrozenBase
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import F32, FolderError


def base_files(config: TrainingConfig) -> dict[str, Path]:
    """Return the paths of the frozen model's files, by their names in its folder.

    The peer has checked them; a link among them is the peer's own, to a file that was here before the run.
    """
    found = {name.removeprefix(BASE_PREFIX): path for name, path in config.files.items() if name.startswith(BASE_PREFIX)}
    return {name: Path(os.path.realpath(path)) for name, path in found.items()}


class BaseFolder(WeightsFolder):
    """Frozen model of a run with an adapter, with the values that the run computes with.

    The matrices of layers are in the run's format; the embedding, the output weights, biases and norms always in bf16.
    Raises `FolderError` for files that are damaged, or that are not the run's model.
    """

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__(Path("base"), base_files(config))
        self.form = WeightFormat(config.base_format)
        if self.config.model_copy(update={"context": config.model.context}) != config.model:
            raise FolderError("the files of the frozen model describe another model than the run; ask the organiser")

    def quantised(self, place: ParameterPlace, device: torch.device) -> QuantizedMatrix | None:
        """Return a matrix of a layer in the format of the run; None for another tensor, and in the format bf16."""
        if self.form is WeightFormat.BF16 or not place.name.endswith("_proj.weight"):
            return None
        return quantize(torch.from_numpy(self.tensor(place)).to(device), self.form)

    def rounded(self, place: ParameterPlace, device: torch.device) -> Tensor:
        """Return a tensor in bf16, as every peer has it, whatever it computes with."""
        return torch.from_numpy(self.tensor(place)).to(device).to(torch.bfloat16)

    def blocks(self, name: str) -> Iterator[F32]:
        """Yield a tensor's values as the run computes with them, in one block, fp32."""
        place, cpu = next(each for each in parameter_layout(self.config) if each.name == name), torch.device("cpu")
        if (matrix := self.quantised(place, cpu)) is not None:
            yield matrix.weights(torch.empty(place.count)).flatten().numpy()
        else:
            yield self.rounded(place, cpu).float().flatten().numpy()


def load_base(config: TrainingConfig, device: torch.device, dtype: torch.dtype) -> FrozenBase:
    """Read the frozen model of a run with an adapter to a device, one tensor at a time.

    dtype: precision of the products in which the weights take part.  Raises `FolderError` as `BaseFolder` does.
    """
    assert config.adapter is not None
    folder, tensors, matrices, largest = BaseFolder(config), dict[str, Tensor](), dict[str, QuantizedMatrix](), 0
    for place in parameter_layout(config.model):
        if (matrix := folder.quantised(place, device)) is not None:
            matrices[place.name], largest = matrix, max(largest, place.count)
        else:
            tensors[place.name] = folder.rounded(place, device).to(dtype)
    scratch = torch.empty(largest, dtype=dtype, device=device)
    return FrozenBase(config.adapter, tensors, matrices, scratch, base_files(config))
