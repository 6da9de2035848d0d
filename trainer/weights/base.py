"""Frozen model below the factors of an adapter run, read from the run's files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from kernels.quantizer import QuantizedMatrix, quantize
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import BASE_PREFIX
from protocol.formats.model import ParameterPlace, parameter_layout
from trainer.config import TrainingConfig
from trainer.device import is_gpu
from trainer.models.llama.model import FrozenBase, StoredMatrix
from trainer.models.llama.prefetcher import HostMatrix, LayerPrefetcher, PinnedRoom
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import F32, FolderError, StoredTensor, finite_values


def base_files(config: TrainingConfig) -> dict[str, Path]:
    """Return the paths of the frozen model's files, by their names in its folder.

    The peer has checked them; a link among them is the peer's own, to a file that was here before the run.
    """
    found = {name.removeprefix(BASE_PREFIX): path for name, path in config.files.items() if name.startswith(BASE_PREFIX)}
    return {name: Path(os.path.realpath(path)) for name, path in found.items()}


CPU, EMBEDDING = torch.device("cpu"), "model.embed_tokens.weight"


@dataclass(frozen=True)
class FileMatrix:
    """A matrix that is read from its file for each use, in bf16.  state: size, number and time of the file when checked."""

    shape: tuple[int, int]
    tensor: StoredTensor
    state: tuple[int, ...]
    format: WeightFormat = WeightFormat.BF16

    @classmethod
    def checked(cls, name: str, shape: tuple[int, int], tensor: StoredTensor) -> Self:
        """Read a matrix once.  Raises `FolderError` for values that are not finite."""
        state = _state_of(tensor.path)
        for _ in finite_values(name, tensor, "use another model"):
            pass
        return cls(shape, tensor, state)

    def copy_to(self, other: QuantizedMatrix) -> None:
        """Read the values into a matrix in bf16.  Raises `FolderError` if the file has changed since it was checked."""
        values, at = other.codes.view(-1), 0
        for block in self._blocks():
            values[at : at + len(block)] = block
            at += len(block)
        if _state_of(self.tensor.path) != self.state:
            raise FolderError(f"{self.tensor.path} was changed while the run used it; fetch the file again")

    def _blocks(self) -> Iterator[Tensor]:
        if self.tensor.form == "BF16":
            return (torch.frombuffer(bytearray(raw), dtype=torch.bfloat16) for raw in self.tensor.raw())
        return map(torch.from_numpy, self.tensor.values())


def _state_of(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_size, found.st_ino, found.st_mtime_ns


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

    def offloaded(self, place: ParameterPlace, device: torch.device) -> HostMatrix:
        """Return a matrix of a layer in the format of the run, for products on `device`, which quantises it.

        It is in the memory of the computer; in bf16 beside a CPU, in its file.
        """
        if self.form is WeightFormat.BF16 and not is_gpu(device):
            rows, inputs = place.shape
            return FileMatrix.checked(place.name, (rows, inputs), self._stored[place.name])
        return quantize(torch.from_numpy(self.tensor(place)).to(device), self.form).to(CPU)

    def blocks(self, name: str) -> Iterator[F32]:
        """Yield a tensor's values as the run computes with them, in one block, fp32."""
        place = next(each for each in parameter_layout(self.config) if each.name == name)
        if (matrix := self.quantised(place, CPU)) is not None:
            yield matrix.weights(torch.empty(place.count)).flatten().numpy()
        else:
            yield self.rounded(place, CPU).float().flatten().numpy()


def load_base(config: TrainingConfig, device: torch.device, dtype: torch.dtype, processes: int = 1) -> FrozenBase:
    """Read the frozen model of a run with an adapter to a device, one tensor at a time.

    With `offload` the matrices of its layers stay with the computer, and so does an embedding that is not also the output
    weights.  dtype: precision of the products in which the weights take part.  processes: number on this computer that do
    the same.  Raises `FolderError` as `BaseFolder` does.
    """
    assert config.adapter is not None
    folder, tensors, matrices, largest = BaseFolder(config), dict[str, Tensor](), dict[str, StoredMatrix](), 0
    layers = [dict[str, HostMatrix]() for _ in range(config.model.layers)]
    room = PinnedRoom(processes)
    for place in parameter_layout(config.model):
        if config.offload and place.name.endswith("_proj.weight"):
            _, _, layer, name = place.name.split(".", 3)
            matrix = folder.offloaded(place, device)
            if device.type == "cuda" and isinstance(matrix, QuantizedMatrix):
                matrix = room.pin(matrix)
            layers[int(layer)][name] = matrix
            largest = max(largest, place.count)
        elif (quantised := folder.quantised(place, device)) is not None:
            matrices[place.name], largest = quantised, max(largest, place.count)
        elif config.offload and not config.model.tied and place.name == EMBEDDING:
            tensors[place.name] = folder.rounded(place, CPU)
        else:
            tensors[place.name] = folder.rounded(place, device).to(dtype)
    prefetcher = LayerPrefetcher(layers, device) if config.offload else None
    if prefetcher is not None:
        matrices |= prefetcher.matrices
        if folder.form is WeightFormat.BF16 and dtype == torch.bfloat16:
            largest = 0  # a matrix is its own values
    scratch = torch.empty(largest, dtype=dtype, device=device)
    return FrozenBase(config.adapter, tensors, matrices, scratch, base_files(config), prefetcher)
