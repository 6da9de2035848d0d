"""Prefetcher of frozen layers, for a device that does not hold all of them.

The matrices of frozen layers lie in the memory of the computer, or in files.  The device has room for two layers: the one
that is computed, and the next one, which a GPU copies meanwhile.  A step goes through the layers upwards, and downwards in
its backward pass, so the next layer is known once two layers have been read.  A wrong guess costs time and nothing else:
a layer that is not on the device is copied when it is read.

The last two layers are still there when the backward pass begins, and the first two when it ends.  A layer that is computed
again in the backward pass is copied once for both.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kernels.quantizer import QuantizedMatrix
from kernels.weight_format import WeightFormat
from trainer.memory import PREFETCHED_LAYERS, pinned_bytes

PINNED_SHARE = 0.5
"""Largest share of the computer's memory that is pinned, because the system cannot give pinned memory to anyone else."""


class HostMatrix(Protocol):
    """A frozen matrix in the memory of the computer (`QuantizedMatrix`), or in a file (`trainer.weights.base`)."""

    @property
    def format(self) -> WeightFormat:
        """Format of the matrix."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""

    def copy_to(self, other: QuantizedMatrix) -> None:
        """Copy the matrix into another one of the same format and shape."""


@dataclass
class _Buffer:
    """Memory of the device for a layer.  layer: the layer in it, or -1.  copied: event of the end of its copy."""

    matrices: Mapping[str, QuantizedMatrix]
    layer: int = -1
    copied: torch.cuda.Event | None = None


class LayerPrefetcher:
    """Frozen layers, of which a device holds `PREFETCHED_LAYERS`."""

    def __init__(self, layers: Sequence[Mapping[str, HostMatrix]], device: torch.device) -> None:
        """Allocate the memory on the device.  layers: the matrices of each layer by name, with equal shapes in all."""
        self._layers, self._device = layers, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        shapes = {name: (each.format, each.shape) for name, each in layers[0].items()}
        self._current, self._other = (
            _Buffer({name: QuantizedMatrix.empty(*shape, device) for name, shape in shapes.items()})
            for _ in range(PREFETCHED_LAYERS)
        )

    @property
    def matrices(self) -> dict[str, PrefetchedMatrix]:
        """The matrices of all layers, by their names in the model."""
        places = ((number, name) for number, layer in enumerate(self._layers) for name in layer)
        return {f"model.layers.{number}.{name}": PrefetchedMatrix(self, number, name) for number, name in places}

    def read(self, layer: int) -> Mapping[str, QuantizedMatrix]:
        """Return the matrices of a layer on the device, valid until two other layers are read; copy the next layer ahead."""
        before = self._current
        if before.layer != layer:
            if self._other.layer != layer:
                self._copy(layer, self._other)
            self._current, self._other = self._other, before
            self._wait(self._current)
            following = layer + (layer - before.layer if abs(layer - before.layer) == 1 else 1)
            if 0 <= following < len(self._layers):
                self._copy(following, before)
        return self._current.matrices

    def _copy(self, layer: int, buffer: _Buffer) -> None:
        """Copy a layer, on a GPU after the work that is queued now, which may read the buffer, and beside later work."""
        buffer.layer = -1  # until it is copied without an error
        if self._stream is None:
            self._copy_matrices(layer, buffer)
        else:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                self._copy_matrices(layer, buffer)
            buffer.copied = self._stream.record_event()
        buffer.layer = layer

    def _copy_matrices(self, layer: int, buffer: _Buffer) -> None:
        for name, matrix in self._layers[layer].items():
            matrix.copy_to(buffer.matrices[name])

    def _wait(self, buffer: _Buffer) -> None:
        """Have a GPU's later work wait for the end of the buffer's copy."""
        if buffer.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(buffer.copied)


@dataclass(frozen=True, eq=False)
class PrefetchedMatrix:
    """A frozen matrix that lies on the device while its layer is computed."""

    prefetcher: LayerPrefetcher
    layer: int
    name: str

    def weights(self, scratch: Tensor) -> Tensor:
        """Return the values as `QuantizedMatrix.weights` does, valid until another layer is read."""
        return self.prefetcher.read(self.layer)[self.name].weights(scratch)


class PinnedRoom:
    """Room for pinned memory, from which a GPU copies while it computes.  processes: number that share this computer."""

    def __init__(self, processes: int = 1) -> None:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._left = int(PINNED_SHARE * total / processes)

    def pin(self, matrix: QuantizedMatrix) -> QuantizedMatrix:
        """Return the matrix in pinned memory; itself if there is no room, so that copies hold up the GPU."""
        codes, scales = matrix.codes, matrix.scales
        needed = pinned_bytes(codes.nbytes) + pinned_bytes(scales.nbytes)
        if needed > self._left:
            return matrix
        try:
            codes, scales = codes.pin_memory(), scales.pin_memory() if scales.numel() else scales
        except RuntimeError as error:  # the driver has limits of its own
            print(f"no more memory can be pinned: {str(error).partition(chr(10))[0]}", file=sys.stderr)
            self._left = 0
            return matrix
        self._left -= needed
        return dataclasses.replace(matrix, codes=codes, scales=scales)
