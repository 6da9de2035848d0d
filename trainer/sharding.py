"""Parameters that several ranks share: FSDP2 gives each rank some rows of each tensor, and gathers a layer while it is used.

Tensors that are sharded by rows are contiguous parts of the flat vector. So a rank reads its parts of theta and encodes the
whole blocks in them where they belong; only blocks in which parts of several ranks meet, a few for each tensor and rank, are
added up over all ranks. The contribution has the bytes that one process would write.

With offload each rank keeps its part in the memory of the computer, even if there is only one rank.  FSDP2 copies a layer to
the GPU to gather it, and copies its gradient back.  The optimiser then works on the CPU.  A run with an adapter has no FSDP.

The module is imported only by trainers that need it, because torch's FSDP takes 80 MB.
"""

from __future__ import annotations

import math
import os
import socket
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from hmac import compare_digest

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from kernels.codecs.ladder import Codec, with_residual
from kernels.layout import ChunkSpan, Layout, Layouts
from protocol.formats.model import ModelConfig, ParameterPlace
from trainer.config import TrainingConfig
from trainer.device import is_gpu
from trainer.models.llama.model import Decoder
from trainer.parameters import (
    F32,
    LOAD_BLOCK,
    ChunkPart,
    DifferenceEncoder,
    LocalParameters,
    NotFinite,
    OfMatrix,
    TensorShard,
    WholeParameters,
    shift,
)
from trainer.reference import Reference
from trainer.weights.base import load_base

PROOF_BYTES = 32


def join_group(number: int, count: int, path: str, secret: bytes, device: torch.device) -> None:
    """Join the trainer's ranks, all on this computer: gloo for CPUs, NCCL for GPUs.  Waits until all have joined.

    path: path of the store's file, which only the ranks can open.  secret: the same bytes for all ranks.  Raises
    `StrangerAmongRanks`.
    """
    names = {name for _, name in socket.if_nameindex()}
    os.environ["GLOO_SOCKET_IFNAME"] = (
        "lo" if "lo" in names else "lo0"
    )  # otherwise it listens at the address of the host's name
    gpu = is_gpu(device)
    if gpu:
        torch.cuda.set_device(device)
    backend, store = "cpu:gloo,cuda:nccl" if gpu else "gloo", FileStore(path, count)
    dist.init_process_group(backend, store=store, rank=number, world_size=count, device_id=device if gpu else None)
    _check_ranks(number, count, secret)


class StrangerAmongRanks(Exception):
    """Error: another process of this computer has connected in place of a rank."""


def _check_ranks(number: int, count: int, secret: bytes) -> None:
    """Raise `StrangerAmongRanks` unless each of gloo's connections leads to the rank that it stands for.

    gloo accepts any process that connects first as the expected rank (it counts connections without identifying them), and
    every user of the computer can connect.  NCCL's connections begin with a random number from the store.
    """

    def proof(sender: int, receiver: int) -> bytes:
        return blake2b(f"rank {sender} to {receiver}".encode(), key=secret, digest_size=PROOF_BYTES).digest()

    others = range(count)
    sent = torch.frombuffer(bytearray().join(proof(number, each) for each in others), dtype=torch.uint8)
    got = torch.empty_like(sent)
    dist.all_to_all_single(got, sent)
    if not compare_digest(got.numpy().tobytes(), b"".join(proof(each, number) for each in others)):
        raise StrangerAmongRanks(f"another program has connected to rank {number} of the trainer in place of a rank")


def leave_group() -> None:
    """Leave the trainer's ranks."""
    dist.destroy_process_group()


def ranks_parameters(config: TrainingConfig, device: torch.device, dtype: torch.dtype) -> LocalParameters:
    """Return this rank's parameters: rows of each tensor of the model, or a whole adapter.  Call `join_group` first."""
    if config.adapter is not None:
        return replicated_parameters(config, device, dtype)
    return sharded_parameters(config.model, device, dtype, offload=config.offload)


def sharded_parameters(
    config: ModelConfig, device: torch.device, dtype: torch.dtype, *, offload: bool = False
) -> ShardedParameters:
    """Return this rank's part of a model, with undefined values until `load`; no process holds the whole model.

    dtype: precision of products.  offload: True to keep the part, its gradients and moments in the memory of the computer,
    from which each layer is copied to the device while it is computed.  Call `join_group` first.
    """
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    model = Decoder(config, device, torch.empty(config.parameters, device="meta"))
    model.compute_dtype = dtype
    model.requires_grad_()
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:  # by default each layer would also round its inputs
        policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    place = CPUOffloadPolicy(pin_memory=is_gpu(device)) if offload else OffloadPolicy()
    for module in (*model.model.layers, model):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=place)
        sharded.set_gradient_divide_factor(1.0)  # a sum: the loss of a rank is its share of the mean over all rows
        sharded.set_force_sum_reduction_for_comms(True)  # gloo does not offer another sum with a factor
    model.to_empty(device="cpu" if offload else device)
    return ShardedParameters(model, mesh)


class ShardedParameters(LocalParameters):
    """A rank's rows of each tensor of a model."""

    def __init__(self, model: Decoder, mesh: DeviceMesh) -> None:
        self.ranks, self._rank = mesh.size(), mesh.get_local_rank()
        self._encoder = DifferenceEncoder(model.device)
        self._kept: list[tuple[int, int, Tensor]] = []
        parameters = list(model.parameters())
        count = sum(_local(parameter).numel() for parameter in parameters)
        self._gradient = torch.zeros(count, device=_local(parameters[0]).device)
        shards, at = [], 0
        for place, parameter in zip(model.layout, parameters, strict=True):
            values, rows = _local(parameter), shard_rows(place.shape[0], self._rank, self.ranks)
            assert values.shape == (len(rows), *place.shape[1:]), f"{place.name} is sharded in another way"
            gradient = self._gradient[at : at + values.numel()].view(values.shape)
            # FSDP2 adds to a gradient where it lies, so that the shards stay views
            assert isinstance(parameter, DTensor)
            # `from_local` would copy it to a GPU
            parameter.grad = DTensor(gradient, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]
            shards.append(TensorShard(place, place.offset + rows.start * _width(place), values, gradient))
            at += values.numel()
        super().__init__(model, shards)

    def load(self, theta: F32 | Reference) -> None:
        """Set the parameters to this rank's parts of `theta`."""
        assert theta.shape == (self.model.config.parameters,)
        self._gather_nothing()
        for shard in self.shards:
            for start, stop, values in _within(shard, 0, len(theta)):
                values.copy_(torch.from_numpy(theta[start:stop].copy()))

    def keep(self, span: range) -> None:
        """Keep a copy of this rank's parameters as `LocalParameters.keep` does."""
        parts = (part for shard in self.shards for part in _within(shard, span.start, span.stop))
        self._kept = [(start, stop, values.clone()) for start, stop, values in parts]

    def merge(self, theta: F32, span: range) -> None:
        """Merge this rank's parameters as `LocalParameters.merge` does."""
        self._gather_nothing()
        parts = (part for shard in self.shards for part in _within(shard, span.start, span.stop))
        for (start, stop, values), (begin, _, kept) in zip(parts, self._kept, strict=True):
            assert start == begin
            shift(values, kept, theta[start:stop])
        self._kept = []

    def show(self, theta: F32 | Reference) -> Decoder:
        """Return the model with the parameters `theta`; its own parameters take the place of the gradient."""
        self._gather_nothing()
        for shard in self.shards:
            shard.gradient.copy_(shard.values)
        self.load(theta)
        return self.model

    def hide(self) -> None:
        """Undo `show`."""
        self._gather_nothing()
        for shard in self.shards:
            shard.values.copy_(shard.gradient)

    def zero_gradient(self) -> None:
        """Set the gradient to zero."""
        self._gradient.zero_()

    def clip_gradient(self, most: float) -> None:
        """Clip as `LocalParameters.clip_gradient` does."""
        square = torch.stack([shard.gradient.norm() for shard in self.shards]).double().square().sum()
        dist.all_reduce(square)
        factor = (most / (square.sqrt() + 1e-6)).clamp(max=1.0)
        self._gradient.mul_(factor.float())

    def of_whole(self, compute: OfMatrix, parts: Sequence[Tensor], matrices: Sequence[TensorShard]) -> list[Tensor]:
        """Make the i-th matrix whole at rank i, compute there, and send the rows back: one exchange in each direction."""
        sent = [part.numel() for part in parts] + [0] * (self.ranks - len(parts))
        mine = matrices[self._rank].place if self._rank < len(matrices) else None
        got = [len(shard_rows(mine.shape[0], each, self.ranks)) * mine.shape[1] if mine else 0 for each in range(self.ranks)]
        matrix = parts[0].new_empty(sum(got))
        dist.all_to_all_single(matrix, torch.cat([part.flatten() for part in parts]), got, sent)
        if mine:
            whole = matrix.view(mine.shape).to(self.model.device)
            matrix = compute(whole).to(matrix.device).contiguous()
        back = parts[0].new_empty(sum(sent))
        dist.all_to_all_single(back, matrix.flatten(), sent, got)
        return [rows.view(part.shape) for rows, part in zip(torch.split(back, sent[: len(parts)]), parts, strict=True)]

    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers."""
        return least_of_ranks(number)

    def encode_difference(
        self, theta: F32, layouts: Layouts, residual: F32 | None, out: memoryview, start: int = 0
    ) -> float:
        """Encode as `LocalParameters.encode_difference` does."""
        layout = layouts.contribution.moved(start)
        assert len(out) == layout.payload_bytes
        self._gather_nothing()
        cut, squares = CutBlocks(self.model.layout, self.ranks, layouts.codec, layout), 0.0
        for chunk in layout:
            layout.format.write_header(out[chunk.encoded])  # all ranks write the same
            for shard in self.shards:
                for start, stop, values in _within(shard, chunk.start, chunk.values.stop):
                    first = min(stop, -(-start // cut.block) * cut.block)
                    last = stop if stop == chunk.values.stop else max(first, stop // cut.block * cut.block)
                    for begin, end in ((start, first), (last, stop)):
                        if begin < end:
                            difference = theta[begin:end] - values[begin - start : end - start].cpu().numpy()
                            squares += float(np.sum(np.square(difference, dtype=np.float64)))
                            cut.put(begin, difference, residual)
                    if first < last and math.isfinite(squares):
                        part = ChunkPart(layouts.codec, chunk, out[chunk.encoded], first, last)
                        try:
                            squares += self._encoder.encode(part, theta, values[first - start : last - start], residual)
                        except NotFinite:
                            squares = math.inf  # the other ranks must be told first
        total = torch.tensor(squares, dtype=torch.float64)
        dist.all_reduce(torch.from_numpy(cut.values))
        dist.all_reduce(total)
        if not (math.isfinite(total) and np.isfinite(cut.values).all()):
            raise NotFinite("a parameter is not finite")
        for chunk, start, encoded in cut.encode(residual)[self._rank :: self.ranks]:
            size = min(cut.block, chunk.values.stop - start)
            layout.format.place(encoded, size, out[chunk.encoded], chunk.count, start - chunk.start)
        self.least(0)  # all have written
        return math.sqrt(total)

    def _gather_nothing(self) -> None:
        """Free the root's gathered parameters, which FSDP2 keeps after a forward pass alone."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()


def replicated_parameters(config: TrainingConfig, device: torch.device, dtype: torch.dtype) -> ReplicatedParameters:
    """Return a whole adapter beside the frozen model, at each rank.  Call `join_group` first."""
    base = load_base(config, device, dtype, dist.get_world_size())
    model = Decoder(config.model, device, base=base)
    model.compute_dtype = dtype
    return ReplicatedParameters(model)


class ReplicatedParameters(WholeParameters):
    """Factors of an adapter, which each rank has whole: they are small, and the frozen model has no gradients to divide.

    The ranks add up their gradients before each update, so their factors stay equal.
    """

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        self.ranks, self._rank = dist.get_world_size(), dist.get_rank()

    def clip_gradient(self, most: float) -> None:
        """Add up the gradients of all ranks, each of which is of its rows' share of the mean, and clip the sum."""
        dist.all_reduce(self.model.gradient)
        super().clip_gradient(most)

    def encode_difference(
        self, theta: F32, layouts: Layouts, residual: F32 | None, out: memoryview, start: int = 0
    ) -> float:
        """Encode at rank 0 as `LocalParameters.encode_difference` does."""
        norm = torch.zeros((), dtype=torch.float64, device=self.device)
        if self._rank == 0:
            try:
                norm += super().encode_difference(theta, layouts, residual, out, start)
            except NotFinite:
                norm += math.inf  # the other ranks must be told first
        dist.broadcast(norm, 0)
        if not torch.isfinite(norm):
            raise NotFinite("a parameter is not finite")
        return float(norm)

    def least(self, number: int) -> int:
        """Return the least of the ranks' numbers."""
        return least_of_ranks(number)


def least_of_ranks(number: int) -> int:
    """Return the least of the ranks' numbers."""
    found = torch.tensor(number)
    dist.all_reduce(found, dist.ReduceOp.MIN)
    return int(found)


def shard_rows(rows: int, rank: int, ranks: int) -> range:
    """Return the rows that FSDP2 gives a rank: as many as other ranks have, but fewer or none for the last ranks."""
    each = -(-rows // ranks)
    return range(min(rows, rank * each), min(rows, (rank + 1) * each))


def _local(parameter: nn.Parameter) -> Tensor:
    tensor = parameter.detach()
    assert isinstance(tensor, DTensor)
    found: Tensor = tensor.to_local()
    return found


def _width(place: ParameterPlace) -> int:
    """Return the number of values of a row."""
    return place.count // place.shape[0]


def _within(shard: TensorShard, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the parts of a shard in a span of the flat vector, each with its start and stop, a block at a time."""
    begin, end, values = max(shard.start, start), min(shard.start + shard.count, stop), shard.values.view(-1)
    while begin < end:
        until = min(end, (begin // LOAD_BLOCK + 1) * LOAD_BLOCK)
        yield begin, until, values[begin - shard.start : until - shard.start]
        begin = until


class CutBlocks:
    """Blocks in which shards of any ranks meet, a few for each tensor and rank, and those that reach beyond the parameters.

    The blocks are the same at each rank.  Each rank puts its own values into zeros, and the ranks add up all blocks.  block:
    number of values in a block.  values: values of all blocks, as rows.
    """

    def __init__(self, places: Sequence[ParameterPlace], ranks: int, codec: Codec, layout: Layout) -> None:
        self.block, self._codec = layout.format.block, codec
        self._chunks = _cut_blocks(places, ranks, layout)
        self._slots = {block: slot for slot, (block, _) in enumerate(self._chunks)}
        self._own: list[tuple[int, int, int]] = []
        """Slot, and range of the flat vector, of values of this rank."""
        self.values: F32 = np.zeros((len(self._chunks), self.block), np.float32)

    def put(self, start: int, difference: F32, residual: F32 | None) -> None:
        """Put values of this rank, from `start` of the flat vector on and within a block, and add their residual."""
        slot, stop = self._slots[start // self.block], start + len(difference)
        if residual is not None and self._codec.feedback is not None:
            decay = np.float32(self._codec.feedback)
            with_residual(difference, residual[start:stop], decay, np.empty_like(difference))
        self.values[slot, start % self.block :][: len(difference)] = difference
        self._own.append((slot, start, stop))

    def encode(self, residual: F32 | None) -> list[tuple[ChunkSpan, int, bytearray]]:
        """Encode the blocks, each alone; return them with their chunks and starts.  Replaces this rank's residual."""
        format, encoded, left = self._codec.contribution, [], np.empty_like(self.values)
        for (block, chunk), values, rest in zip(self._chunks, self.values, left, strict=True):
            start = block * self.block
            size = min(self.block, chunk.values.stop - start)
            data = bytearray(format.encoded_bytes(size))
            format.encode(values[:size], data)
            format.decode(data, size, rest[:size])
            encoded.append((chunk, start, data))
        np.subtract(self.values, left, out=left)
        if residual is not None and self._codec.feedback is not None:
            for slot, start, stop in self._own:
                residual[start:stop] = left[slot, start % self.block :][: stop - start]
        return encoded


def _cut_blocks(places: Sequence[ParameterPlace], ranks: int, layout: Layout) -> list[tuple[int, ChunkSpan]]:
    """Return the blocks of `CutBlocks`, with their chunks."""
    begins, size, found = [chunk.start for chunk in layout], layout.format.block, {}
    parameters, stop = places[-1].offset + places[-1].count, layout[-1].values.stop
    for block in range(parameters // size, stop // size if stop > parameters else 0):
        found[block] = layout[bisect_right(begins, block * size) - 1]
    for place in places:
        for rank in range(ranks):
            start = place.offset + shard_rows(place.shape[0], rank, ranks).start * _width(place)
            chunk = layout[max(0, bisect_right(begins, start) - 1)]
            if start % size and chunk.start < start < chunk.values.stop:
                found[start // size] = chunk
    return sorted(found.items(), key=lambda item: item[0])
