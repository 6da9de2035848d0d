"""Frozen model below the factors of an adapter run, read from the run's files."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from protocol.formats.model import parameter_layout
from trainer.config import TrainingConfig
from trainer.models.llama.model import FrozenBase
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import FolderError

BASE = "base/"
"""Prefix of the names of the model's files among the files of a run; their names in its folder follow."""


def base_files(config: TrainingConfig) -> dict[str, Path]:
    """Return the paths of the frozen model's files, by their names in its folder.

    The peer has checked them; a link among them is the peer's own, to a file that was here before the run.
    """
    found = {name.removeprefix(BASE): path for name, path in config.files.items() if name.startswith(BASE)}
    return {name: Path(os.path.realpath(path)) for name, path in found.items()}


def load_base(config: TrainingConfig, device: torch.device, dtype: torch.dtype) -> FrozenBase:
    """Read the frozen model of a run with an adapter to a device, one tensor at a time.

    dtype: precision of the products in which the weights take part.  Raises `FolderError` for files that are damaged, or
    that are not the run's model.
    """
    assert config.adapter is not None
    folder = WeightsFolder(Path("base"), base_files(config))
    if folder.config.model_copy(update={"context": config.model.context}) != config.model:
        raise FolderError("the files of the frozen model describe another model than the run; ask the organiser")
    tensors = {
        place.name: torch.from_numpy(folder.tensor(place)).to(device, dtype) for place in parameter_layout(config.model)
    }
    return FrozenBase(config.adapter, tensors)
