"""Parameters that lie in this process, and their bridge to the flat vector that peers exchange.

A trainer is one process, or several that share one model; each of these is a rank and has some rows of each tensor. This
module has the interface that the rest of the trainer uses for both, and the implementation for one process, whose parameters
are the flat vector itself. `trainer.sharding` has the implementation for several ranks. All ranks call the same methods in
the same order.
"""

from __future__ import annotations

import math
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from kernels import codec
from kernels.layout import Layout, payload_bytes
from trainer.device import on_device
from trainer.models.llama.config import ParameterPlace
from trainer.models.llama.model import Decoder
from trainer.reference import ReferenceWeights

F32 = npt.NDArray[np.float32]

LOAD_BLOCK = 1 << 20
"""Count of values copied from or to the flat vector at a time."""


class NotFinite(Exception):
    """Error for a loss or a parameter that is not finite; the parameters of this round are unusable."""


@dataclass(frozen=True)
class TensorShard:
    """Rows of a tensor that lie in this process, as views; there may be none.

    place: of the whole tensor.  start: place of the rows' first value in the flat vector.  gradient: of `values`.
    """

    place: ParameterPlace
    start: int
    values: Tensor
    gradient: Tensor

    @property
    def count(self) -> int:
        """Number of values."""
        return self.values.numel()


OfMatrix = Callable[[Tensor], Tensor]
"""Function of a whole matrix, whose result has its shape."""


class LocalParameters(ABC):
    """Parameters of `model` that lie in this process.

    shards: one for each tensor, in order.  ranks: number of processes that share the model.  shows_in_place: True if `show`
    copies nothing.
    """

    ranks = 1
    shows_in_place = False

    def __init__(self, model: Decoder, shards: Sequence[TensorShard]) -> None:
        self.model, self.shards = model, tuple(shards)

    @property
    def device(self) -> torch.device:
        """Device on which the shards lie."""
        return self.shards[0].values.device

    @abstractmethod
    def load(self, theta: F32) -> None:
        """Set the parameters to `theta`, the whole vector."""

    @abstractmethod
    def encode_difference(self, theta: F32, layout: Layout, out: memoryview) -> float:
        """Encode theta minus the parameters into `out`, which the ranks share; return the norm of the difference.

        `out` is complete when the method returns at any rank.  Raises NotFinite at all ranks, or at none.
        """

    @abstractmethod
    def show(self, theta: F32 | ReferenceWeights) -> Decoder:
        """Return a model with the parameters `theta`, to be used without gradients and not in a step; then call `hide`.

        Needs no memory: what lies on the device takes the place of the gradient, which has no use between two steps.
        """

    @abstractmethod
    def hide(self) -> None:
        """Undo `show`: the parameters are as before, and the gradient is undefined."""

    @abstractmethod
    def zero_gradient(self) -> None:
        """Set the gradient to zero."""

    @abstractmethod
    def clip_gradient(self, most: float) -> None:
        """Scale the gradient so that its norm over all ranks is at most `most`."""

    @abstractmethod
    def of_whole(
        self, compute: Callable[[Tensor], Tensor], parts: Sequence[Tensor], matrices: Sequence[TensorShard]
    ) -> list[Tensor]:
        """Apply `compute` to whole matrices, at most as many as ranks; return the local rows of the results.

        parts: the local rows of the matrices.  matrices: the shards to which they belong.
        """

    @abstractmethod
    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers."""


class WholeParameters(LocalParameters):
    """All parameters of a model, in one process: its flat vector."""

    def __init__(self, model: Decoder) -> None:
        shards = []
        for place in model.layout:
            span = slice(place.offset, place.offset + place.count)
            values, gradient = (vector[span].view(place.shape) for vector in (model.flat, model.gradient))
            shards.append(TensorShard(place, place.offset, values, gradient))
        super().__init__(model, shards)
        self.shows_in_place = reads_where_it_lies(model.device)
        self._shown: tuple[F32, Decoder] | None = None
        """Parameters that are shown where they lie, and the model over them."""
        self._encoder = DifferenceEncoder(model.device)

    def load(self, theta: F32) -> None:
        """Set the parameters to `theta`."""
        load(theta, self.model.flat)

    def encode_difference(self, theta: F32, layout: Layout, out: memoryview) -> float:
        """Encode as `LocalParameters.encode_difference` does."""
        assert len(out) == payload_bytes(layout)
        squares = 0.0
        for span in layout:
            encoded, square = self._encoder.encode(theta[span.values], self.model.flat[span.values])
            out[span.encoded] = encoded.data
            squares += square
        return math.sqrt(squares)

    def show(self, theta: F32 | ReferenceWeights) -> Decoder:
        """Return a model over the memory in which theta lies, on a CPU; otherwise over a copy."""
        if not self.shows_in_place or isinstance(theta, ReferenceWeights):
            load(theta, self.model.gradient)
            return self.model.over(self.model.gradient)
        if self._shown is None or self._shown[0] is not theta:
            self._shown = theta, self.model.over(_as_tensor(theta))
        return self._shown[1]

    def hide(self) -> None:
        """Do nothing: the parameters have not changed."""

    def zero_gradient(self) -> None:
        """Set the gradient to zero."""
        self.model.gradient.zero_()

    def clip_gradient(self, most: float) -> None:
        """Clip as `LocalParameters.clip_gradient` does."""
        clip_grad_norm_(self.model.parameters(), most)

    def of_whole(
        self, compute: Callable[[Tensor], Tensor], parts: Sequence[Tensor], matrices: Sequence[TensorShard]
    ) -> list[Tensor]:
        """Apply `compute` to one matrix."""
        return [compute(each) for each in parts]

    def least(self, number: int) -> int:
        """Return `number`."""
        return number


def reads_where_it_lies(device: torch.device) -> bool:
    """Return True if this device works on the memory that peer and trainer share."""
    return device.type == "cpu"


def load(theta: F32 | ReferenceWeights, into: Tensor) -> None:
    """Copy the parameters to `into`, on any device, block by block."""
    assert theta.shape == into.shape
    for start in range(0, len(theta), LOAD_BLOCK):
        into[start : start + LOAD_BLOCK] = torch.from_numpy(theta[start : start + LOAD_BLOCK].copy())


Encoded = tuple[npt.NDArray[np.uint8], float]
"""Codec bytes of some values, and the sum of the values' squares."""


class DifferenceEncoder:
    """Encoder of differences, which computes on the device if its kernels are Triton's."""

    def __init__(self, device: torch.device) -> None:
        self._on_host = device.type != "cuda"

    def encode(self, theta: F32, values: Tensor) -> Encoded:
        """Encode theta minus `values`, as many.  Raises NotFinite."""
        if not self._on_host:
            try:
                return encode_on_gpu(theta, values)
            except NotFinite:
                raise
            except Exception as error:  # noqa: BLE001 - Triton needs a C compiler, and its errors differ by version
                print(f"contributions are encoded on the host, because the GPU's kernel fails: {error}", file=sys.stderr)
                self._on_host = True
        return encode_on_host(theta, values)


def encode_on_host(theta: F32, values: Tensor) -> Encoded:
    """Encode as `DifferenceEncoder.encode` does."""
    difference = theta - values.cpu().numpy()
    square = float(np.sum(np.square(difference, dtype=np.float64)))
    if not math.isfinite(square):
        raise NotFinite("a parameter is not finite")
    encoded = np.empty(codec.encoded_bytes(len(difference)), np.uint8)
    codec.encode(difference, encoded)
    return encoded, square


def encode_on_gpu(theta: F32, values: Tensor) -> Encoded:
    """Encode as `encode_on_host` does, and with its bytes, on the GPU on which `values` lie.

    Only theta is copied there, and the encoded bytes back.
    """
    from kernels import codec_triton

    base = on_device(theta.copy(), values.device)
    encoded = torch.empty(codec.encoded_bytes(len(values)), dtype=torch.uint8, device=values.device)
    try:
        norm = codec_triton.encode_difference(base, values, encoded)
    except ValueError as error:
        raise NotFinite("a parameter is not finite") from error
    return encoded.cpu().numpy(), norm**2


def _as_tensor(theta: F32) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # theta is mapped read-only, and no code writes to the tensor
        return torch.from_numpy(theta)
