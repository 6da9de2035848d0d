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

from kernels.codecs.ladder import Codec
from kernels.layout import ChunkSpan, Layouts
from protocol.formats.model import ParameterPlace
from trainer.device import on_device
from trainer.extras import install_command
from trainer.models.llama.model import Decoder
from trainer.reference import HeldWeights, Reference

F32 = npt.NDArray[np.float32]

LOAD_BLOCK = 1 << 20
"""Count of values copied from or to the flat vector at a time."""


class NotFinite(Exception):
    """Error for a loss or a parameter that is not finite; the parameters of this round are unusable."""


@dataclass(frozen=True)
class TensorShard:
    """Rows of a tensor in this process, as views; their number may be 0.

    place: place of the whole tensor.  start: place of the rows' first value in the flat vector.  gradient: gradient of
    `values`.
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
    does not copy.
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
    def encode_difference(
        self, theta: F32, layouts: Layouts, residual: F32 | None, out: memoryview, start: int = 0
    ) -> float:
        """Encode theta minus the parameters into `out`, which the ranks share; return the norm of the difference.

        start: place of the fragment that `layouts` divide; values beyond the parameters are 0.  residual: the remainder of
        earlier differences, added and replaced as `Codec.encode_range` describes; None without error feedback.  `out` is
        complete when the method returns at any rank.  Raises NotFinite at all ranks, or at none.
        """

    @abstractmethod
    def keep(self, span: range) -> None:
        """Keep a copy of the parameters in this span of the flat vector, which have been contributed, until `merge`."""

    @abstractmethod
    def merge(self, theta: F32, span: range) -> None:
        """Take over the result of a contribution to this span, in `theta`: add the change of the parameters since `keep`.

        The parameters become theta + (parameters - kept parameters).  Streaming DiLoCo (Douillard et al. 2025) blends theta
        and the parameters instead; the sum needs no constant and loses less (docs/results/diloco.md).
        """

    @abstractmethod
    def show(self, theta: F32 | Reference) -> Decoder:
        """Return a model with the parameters `theta`, to be used without gradients and not in a step; then call `hide`.

        No memory is needed: parameters on the device take the place of the gradient, which is unused between two steps.
        """

    @abstractmethod
    def hide(self) -> None:
        """Undo `show`: restore the parameters; the gradient is then undefined."""

    @abstractmethod
    def zero_gradient(self) -> None:
        """Set the gradient to zero."""

    @abstractmethod
    def clip_gradient(self, most: float) -> None:
        """Scale the gradient so that its norm over all ranks is at most `most`."""

    def of_whole(self, compute: OfMatrix, parts: Sequence[Tensor], matrices: Sequence[TensorShard]) -> list[Tensor]:
        """Apply `compute` to whole matrices, at most one for each rank; return the local rows of the results.

        parts: the local rows of the matrices.  matrices: the shards to which they belong.
        """
        return [compute(each) for each in parts]

    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers."""
        return number


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
        """Parameters that `show` uses in place, and the model over them."""
        self._beside: Decoder | None = None
        """Model over the gradient's memory."""
        self._encoder = DifferenceEncoder(model.device)
        self._kept: Tensor | None = None

    def load(self, theta: F32) -> None:
        """Set the parameters to `theta`."""
        load(theta, self.model.flat)

    def encode_difference(
        self, theta: F32, layouts: Layouts, residual: F32 | None, out: memoryview, start: int = 0
    ) -> float:
        """Encode as `LocalParameters.encode_difference` does."""
        layout, squares = layouts.contribution.moved(start), 0.0
        assert len(out) == layout.payload_bytes
        for span in layout:
            layout.format.write_header(out[span.encoded])
            part = ChunkPart(layouts.codec, span, out[span.encoded], span.start, span.values.stop)
            values = self.model.flat[span.values]
            if len(values) == span.count:
                squares += self._encoder.encode(part, theta, values, residual)
            else:
                squares += encode_last(part, theta, values, residual)
        return math.sqrt(squares)

    def keep(self, span: range) -> None:
        """Keep a copy as `LocalParameters.keep` does."""
        self._kept = None  # so that there are never two copies
        self._kept = self.model.flat[span.start : span.stop].clone()

    def merge(self, theta: F32, span: range) -> None:
        """Merge as `LocalParameters.merge` does."""
        assert self._kept is not None and len(self._kept) == len(span)
        shift(self.model.flat[span.start : span.stop], self._kept, theta[span.start : span.stop])
        self._kept = None

    def show(self, theta: F32 | Reference) -> Decoder:
        """Return a model over the memory in which theta lies, on a CPU; otherwise over a copy."""
        if not self.shows_in_place or not isinstance(theta, np.ndarray):
            load(theta, self.model.gradient)
            if self._beside is None:
                self._beside = self.model.over(self.model.gradient)
            return self._beside
        if self._shown is None or self._shown[0] is not theta:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # theta is mapped read-only, and no code writes to the tensor
                self._shown = theta, self.model.over(torch.from_numpy(theta))
        return self._shown[1]

    def hide(self) -> None:
        """Do nothing: the parameters have not changed."""

    def zero_gradient(self) -> None:
        """Set the gradient to zero."""
        self.model.gradient.zero_()

    def clip_gradient(self, most: float) -> None:
        """Clip as `LocalParameters.clip_gradient` does."""
        clip_grad_norm_(self.model.parameters(), most)


def reads_where_it_lies(device: torch.device) -> bool:
    """Return True if this device works on the memory that peer and trainer share."""
    return device.type == "cpu"


def load(theta: F32 | Reference, into: Tensor) -> None:
    """Copy the parameters to `into`, on any device: block by block, unless they lie on a device already."""
    assert theta.shape == into.shape
    if isinstance(theta, HeldWeights):
        into.copy_(theta.values)
        return
    for start in range(0, len(theta), LOAD_BLOCK):
        into[start : start + LOAD_BLOCK] = torch.from_numpy(theta[start : start + LOAD_BLOCK].copy())


def shift(values: Tensor, kept: Tensor, theta: F32) -> None:
    """Set `values` to theta + (values - kept), block by block; all have the same size."""
    for start in range(0, len(theta), LOAD_BLOCK):
        part = slice(start, start + LOAD_BLOCK)
        values[part].sub_(kept[part]).add_(torch.from_numpy(theta[part].copy()).to(values.device))


@dataclass(frozen=True)
class ChunkPart:
    """Whole blocks of a chunk of a contribution: the values from `start` to `stop` of the flat vector.

    out: the bytes of the whole chunk.
    """

    codec: Codec
    chunk: ChunkSpan
    out: memoryview
    start: int
    stop: int

    @property
    def at(self) -> int:
        """Place of the first value in the chunk."""
        return self.start - self.chunk.start


class DifferenceEncoder:
    """Encoder of differences, which computes on the device if its kernels are Triton's."""

    def __init__(self, device: torch.device) -> None:
        self._on_host = device.type != "cuda"

    def encode(self, part: ChunkPart, theta: F32, values: Tensor, residual: F32 | None) -> float:
        """Encode theta minus `values` as a part of a chunk; return the sum of the difference's squares.  Raises NotFinite.

        theta, residual: whole flat vectors; the residual is replaced.  values: values of the part alone.
        """
        base, left = theta[part.start : part.stop], None if residual is None else residual[part.start : part.stop]
        if not self._on_host:
            try:
                return encode_on_gpu(part, base, values, left)
            except NotFinite:
                raise
            except Exception as error:  # noqa: BLE001 - Triton needs a C compiler, and its errors differ by version
                remedy = f"; run {install_command('gpu')}" if isinstance(error, ModuleNotFoundError) else ""
                print(
                    f"contributions are encoded on the host, because the GPU's kernel fails: {error}{remedy}",
                    file=sys.stderr,
                )
                self._on_host = True
        return encode_on_host(part, base, values, left)


def encode_on_host(part: ChunkPart, base: F32, values: Tensor, residual: F32 | None) -> float:
    """Encode as `DifferenceEncoder.encode` does; all arguments cover the part alone."""
    difference = base - values.cpu().numpy()
    square = float(np.sum(np.square(difference, dtype=np.float64)))
    try:
        part.codec.encode_range(difference, residual, part.out, part.chunk.count, part.at)
    except ValueError as error:
        raise NotFinite("a parameter is not finite") from error
    return square


def encode_last(part: ChunkPart, theta: F32, values: Tensor, residual: F32 | None) -> float:
    """Encode a chunk that reaches beyond the parameters, on the host, as `DifferenceEncoder.encode` does."""
    size, count = part.stop - part.start, len(values)
    base, own, left = (np.zeros(size, np.float32) for _ in range(3))
    base[:count], own[:count] = theta[part.start :], values.cpu().numpy()
    if residual is None:
        return encode_on_host(part, base, torch.from_numpy(own), None)
    left[:count] = residual[part.start :]
    square = encode_on_host(part, base, torch.from_numpy(own), left)
    residual[part.start :] = left[:count]
    return square


def encode_on_gpu(part: ChunkPart, base: F32, values: Tensor, residual: F32 | None) -> float:
    """Encode as `encode_on_host` does, to the same bytes, on the GPU that holds `values`.

    Only theta and the residual are copied there, and the encoded bytes and the residual back.
    """
    from kernels import codec_triton

    format, device = part.codec.contribution, values.device
    encoded = torch.empty(format.encoded_bytes(len(values)), dtype=torch.uint8, device=device)
    left = None if residual is None else on_device(residual.copy(), device)
    try:
        norm = codec_triton.encode_difference(part.codec, on_device(base.copy(), device), values, left, encoded)
    except ValueError as error:
        raise NotFinite("a parameter is not finite") from error
    if residual is not None and left is not None:
        residual[:] = left.cpu().numpy()
    format.place(encoded.cpu().numpy(), len(values), part.out, part.chunk.count, part.at)
    return norm**2
