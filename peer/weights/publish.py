"""Preparation of weights for publishing: they are checked against the run's model, and written to one file in one order.

Published weights are always written in the order of the run's model, with one header, so that a patch between two versions
changes only values, even if different programs wrote the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels.outside_files import named_file
from peer.errors import ExitCode, PeerError
from peer.paths import make_private, run_dir
from protocol.formats.model import ParameterPlace, parameter_layout
from protocol.run.manifest import SignedManifest
from trainer.config import TrainingConfig
from trainer.weights.folder import check_repeated
from trainer.weights.safetensors_file import ExportFormat, FolderError, StoredTensor, header_of, tensors_in


@contextmanager
def prepared(signed: SignedManifest, source: Path, data: Path) -> Iterator[str]:
    """Yield the name of a file with the content of `source` in the run's folder of weights; remove the file at the end.

    source: a safetensors file, or a folder with such files.  Raises `PeerError`.
    """
    folder = make_private(make_private(run_dir(data, signed.run)) / "weights")
    target = folder / f".given-{os.getpid()}.new"
    try:
        tensors, layout = _tensors(source), _layout(signed)
        _check(source, tensors, layout, tied=signed.manifest.model.tied)
        with target.open("xb") as file:
            file.write(header_of(layout, ExportFormat.BF16))
            for place in layout:
                for block in tensors[place.name].raw():
                    file.write(block)
        yield target.name
    except FolderError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
    finally:
        target.unlink(missing_ok=True)


def _layout(signed: SignedManifest) -> list[ParameterPlace]:
    return [*parameter_layout(TrainingConfig.from_sections(signed.manifest.trainer_sections()).model)]


def _tensors(source: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a file, or of a folder's files."""
    paths = sorted(source.glob("*.safetensors")) if source.is_dir() else [named_file(source)]
    if not paths:
        raise PeerError(
            f"{source} has no safetensors files; give a file, or a folder as `peer export` writes it", ExitCode.INPUT
        )
    found: dict[str, StoredTensor] = {}
    for path in paths:
        for name, tensor in tensors_in(path).items():
            if name in found:
                raise PeerError(f"two files in {source} have a tensor {name[:80]}; keep one model in it", ExitCode.INPUT)
            found[name] = tensor
    return found


def _check(source: Path, tensors: dict[str, StoredTensor], layout: list[ParameterPlace], *, tied: bool) -> None:
    if tied and (head := tensors.pop("lm_head.weight", None)) is not None:
        check_repeated(source, tensors.get("model.embed_tokens.weight"), head)
    for place in layout:
        tensor = tensors.get(place.name)
        if tensor is None:
            raise PeerError(f"{source} has no tensor {place.name}, which the run's model has", ExitCode.INPUT)
        if tensor.shape != place.shape:
            raise PeerError(
                f"{source}: {place.name} has the shape {list(tensor.shape)}, but {list(place.shape)} in the run's model",
                ExitCode.INPUT,
            )
        if tensor.form != ExportFormat.BF16.tensor_name:
            raise PeerError(
                f"{source}: {place.name} is {tensor.form}; versions are bf16, so save it as bfloat16", ExitCode.INPUT
            )
    strange = sorted(set(tensors).difference(place.name for place in layout))
    if strange:
        raise PeerError(f"{source} has a tensor {strange[0][:80]}, which the run's model lacks", ExitCode.INPUT)
