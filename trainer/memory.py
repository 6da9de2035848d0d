"""Peak memory of a trainer, estimated only from the run's numbers, before any allocation.

This module imports only the standard library, so that the peer can use it without loading torch. On a CPU the estimate is
exact enough to refuse a run (`python -m benchmarks.memory` compares it with real trainers), because this module also chooses
the CPU's micro-batch, and the layers that the backward pass computes again. A larger micro-batch is not faster on a CPU. If
it did not fit, the system would end the process, instead of raising an error on which the trainer could halve the
micro-batch. On a GPU the trainer measures its first step and takes as much as fits (`trainer.optim`), so the estimate is for
the smallest step: one sequence, with all layers computed again.

Shared memory (theta and the contribution) belongs to the peer and is not counted. The peer also counts the residual of error
feedback, which has the same size on every device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

from kernels.weight_format import WeightFormat
from protocol.formats.adapter import PROJECTIONS, projections
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from trainer.config import CHOICES, SLOTS, SPARE_VERSIONS, TrainingConfig

MB = 1 << 20
EXIT_NO_MEMORY = 4
"""Exit status of a trainer process whose memory is not enough.  When it is started again, the peer tells it to spare
memory."""
ACTIVATION_BYTES = 512 * MB
"""Limit on the activations of a CPU's micro-batch, unless one sequence needs more."""
KEPT_BYTES = 4096 * MB
"""Limit on the activations of one sequence on a CPU; layers beyond it are computed again, which takes a third longer."""
SHARDING_BYTES = 120 * MB
"""Memory of torch's FSDP in a process of several ranks."""
COMPILER_BYTES = 144 * MB
"""Memory of torch's compiler, which torch's function to compute layers again loads."""
LOSS_TOKENS, LOSS_LOGITS = 4096, 1 << 27
"""Most tokens, and most logits, in memory at once in a loss (`kernels.losses.tokens_at_once`)."""
CPU_PROCESS_BYTES = 290 * MB
"""Memory of Python and torch's CPU library."""
CUDA_PROCESS_BYTES = 3 << 30
"""Host memory of Python, torch and CUDA's libraries."""
CUDA_CONTEXT_BYTES = 600 * MB
"""GPU memory of a process before it allocates memory."""
PREFILL_TOKENS = 1024
"""Number of known tokens that a generator computes at once (`trainer.generate.engine.PREFILL_TOKENS`)."""
REFERENCE_TOKENS = 1 << 12
"""Number of tokens of preferences whose log-probabilities under the reference weights are computed at once."""
CHOICE_BYTES = 36
"""Bytes per token of the vocabulary when a token is chosen: logit, 64 random bits in three places, noise (`sampling`)."""
GPU_LOGIT_BYTES = 6
"""Bytes held per logit in the language model's loss on a GPU: in bf16 and in fp32.  A CPU holds only one of them."""
POLICY_LOGIT_BYTES = 24
"""Bytes held per logit in the policy loss: the logit, the log-probability, the probability, gradients."""
PREFERENCE_LOGIT_BYTES = 12
"""Bytes held per logit in the loss of preferences."""
STATE_BYTES = 16
"""Bytes of a parameter, its gradient and Adam's two moments, each in fp32."""
MUON_STATE_BYTES = 12
"""Bytes of a parameter, its gradient and its only moment, for a matrix that Muon updates."""
HELD = 0.45
"""Memory that a CPU's allocator holds in pieces too small to use, as a share of a step's need without large blocks."""
FACTORS_HELD = 0.2
"""The same share in a run with an adapter, whose gradients are few."""
MAX_HELD_BYTES = 256 * MB
"""Limit on this memory; its share is smaller for longer rows, whose blocks are few and large."""
PREFETCHED_LAYERS = 2
"""Frozen layers on a device that does not hold all of them (`trainer.models.llama.prefetcher`)."""
LARGE_BYTES = 32 * MB
"""Size of blocks that do not leave such pieces."""


@dataclass(frozen=True)
class TrainerSetup:
    """Division and precision of a trainer.

    device: "cpu" or "cuda".  ranks: processes that share the model.  bf16: True if a CPU's products are bf16; a GPU's always
    are.  offload: True if parameters, gradients and moments lie in the memory of the computer; in a run with an adapter,
    instead the frozen layers, which a CPU leaves in their files in the format bf16.
    """

    device: str = "cpu"
    ranks: int = 1
    bf16: bool = False
    offload: bool = False

    @property
    def has_bf16(self) -> bool:
        """True if products are bf16."""
        return self.bf16 or self.device != "cpu"

    @property
    def is_sharded(self) -> bool:
        """True if torch's FSDP gathers each layer before it is computed."""
        return self.ranks > 1 or self.offload


@dataclass(frozen=True)
class TrainerMemory:
    """Peak memory in bytes.  host: in the computer's memory.  device: in the GPU's memory, 0 on a CPU."""

    host: int
    device: int


class TrainerWork(Enum):
    """Kind of work that a trainer process does."""

    TRAIN = "train"
    GENERATE = "generate"
    VERIFY = "verify"


def trainer_memory(config: TrainingConfig, setup: TrainerSetup, work: TrainerWork = TrainerWork.TRAIN) -> TrainerMemory:
    """Estimate a trainer's memory; for several ranks, the host memory of all, and the memory of each GPU.

    Only RL runs have other work than training; RL trainers also verify, and only trainers have several ranks. Rank 0 keeps
    the versions of an RL run, in the computer's memory, and verifies.
    """
    if config.adapter is not None and setup.offload:
        again = config.model.layers if setup.device != "cpu" else 0
        found = _work_memory(config, replace(setup, offload=False), work, _prefetched_bytes(config, setup), again)
        return replace(found, host=found.host + setup.ranks * _offloaded_bytes(config, setup))
    return _work_memory(config, setup, work, _frozen_bytes(config, setup))


def _work_memory(
    config: TrainingConfig, setup: TrainerSetup, work: TrainerWork, frozen: int, again: int = 0
) -> TrainerMemory:
    """Estimate as `trainer_memory` does.

    frozen: bytes of the frozen model where a process computes.  again: layers computed again in a step on rollouts.
    """
    model, rl = config.model, config.rl
    copies = setup.ranks if config.adapter is not None else 1  # each rank has a whole adapter
    reading = _with_processes(setup, copies * _state_bytes(config), _reading_bytes(config, setup) + frozen)
    if rl is None:
        return reading
    is_cpu = setup.device == "cpu"
    width, state = 4 if is_cpu else 2, STATE_BYTES * config.parameters
    versions = (rl.max_async + SPARE_VERSIONS) * 2 * config.parameters
    match work:
        case TrainerWork.GENERATE:
            # a sequence has at most as many tokens as a row, in which it is packed
            weights = width * config.parameters + frozen
            passing = PREFILL_TOKENS * _passing_values(model) * 4 + SLOTS * model.vocab * CHOICE_BYTES
            generating = weights + _cache_bytes(model, SLOTS * (rl.row_tokens + 2), width) + passing
            found = [_with_processes(setup, 0, generating)]
        case TrainerWork.VERIFY:
            found = [_with_processes(setup, 0, _verifying_bytes(config, rl, width) + frozen)]
        case TrainerWork.TRAIN:
            most = max(rl.row_tokens, rl.micro_batch_tokens)
            rows = most if is_cpu else rl.row_tokens  # a CPU's micro-batch has its whole size, a GPU's at least one row
            step = _step_bytes(config, rows, setup.has_bf16, again, POLICY_LOGIT_BYTES) + _copied_bytes(config, setup)
            step = max(step, _comparing_bytes(config, most, setup.device) if _compares(rl) else 0)
            step += frozen + _wide_output_bytes(config, setup)
            verifying, idle = _verifying_bytes(config, rl, width) + frozen, _with_processes(setup, state, 0)
            beside = (idle.host + verifying, 0) if is_cpu else (idle.host, idle.device + verifying)
            found = [reading, _with_processes(setup, state, step), TrainerMemory(*beside)]
    host, device = max(each.host for each in found), max(each.device for each in found)
    return TrainerMemory(host + versions, device)


def _compares(rl: RlConfig) -> bool:
    """Return True if a trainer compares its model with other weights before it learns from rollouts."""
    return bool(rl.kl_weight) or (rl.compares_behaviour and rl.max_async > 0)


def _wide_output_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of a CPU's copy of output weights in fp32, for logits that are not rounded to bf16."""
    return 4 * config.model.vocab * config.model.dim if setup.bf16 and setup.device == "cpu" else 0


def _with_processes(setup: TrainerSetup, state: int, needed: int) -> TrainerMemory:
    """Return the memory of all ranks.  state: bytes of all ranks' state.  needed: bytes of each rank's work."""
    if setup.device == "cpu":
        process = CPU_PROCESS_BYTES + (SHARDING_BYTES if setup.is_sharded else 0)
        return TrainerMemory(state + setup.ranks * (process + needed), 0)
    on_host, on_device = (state, 0) if setup.offload else (0, state // setup.ranks)
    return TrainerMemory(setup.ranks * CUDA_PROCESS_BYTES + on_host, CUDA_CONTEXT_BYTES + on_device + needed)


def _reading_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of a rank's step on the run's data, or of the comparison of preferences before it."""
    model, length, unit = config.model, config.data.sequence_length, config.unit_rows
    plan = step_plan(config, setup)
    rows = plan.units * unit
    logit_bytes = (
        PREFERENCE_LOGIT_BYTES if unit == 2 else (GPU_LOGIT_BYTES if setup.device != "cpu" else 2 if setup.bf16 else 4)
    )
    needed = _step_bytes(config, rows * length, setup.has_bf16, plan.recomputed, logit_bytes) + _copied_bytes(config, setup)
    if plan.recomputed and setup.device == "cpu":
        needed += 0 if setup.is_sharded else COMPILER_BYTES
        needed += rows * length * _layer_bytes(model, setup.bf16)  # at other addresses than in its first computation
    if unit == 2:  # a CPU's allocator keeps what this took
        needed += _wide_output_bytes(config, setup)
        comparing = _comparing_bytes(config, max(REFERENCE_TOKENS, unit * length), setup.device)
        needed = needed + comparing if setup.device == "cpu" else max(needed, comparing)
    return needed


def _frozen_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of the frozen model in a process of a run with an adapter.

    Its matrices are in the run's format, with room for the values of one of them; or, as all the rest, in the precision of
    products.
    """
    if config.adapter is None:
        return 0
    model, width = config.model, 2 if setup.has_bf16 else 4
    if (form := WeightFormat(config.base_format)) is WeightFormat.BF16:
        return width * model.parameters
    sizes = _matrix_sizes(model)
    quantised = model.layers * sum(sizes)
    return ceil(form.bytes_per_value * quantised) + width * (model.parameters - quantised + max(sizes))


def _matrix_sizes(model: ModelConfig) -> list[int]:
    """Return the numbers of values of a layer's matrices."""
    return [inputs * outputs for _, inputs, outputs in projections(model, "all")]


def _prefetched_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of the frozen model where a process computes, if its layers are copied there one by one.

    That is two layers, with room for the values of a matrix unless it is its own values, and all tensors outside the
    matrices of layers, but not an embedding that lies with the computer.
    """
    model, form, width = config.model, WeightFormat(config.base_format), 2 if setup.has_bf16 else 4
    sizes = _matrix_sizes(model)
    other = model.parameters - model.layers * sum(sizes) - (0 if model.tied else model.vocab * model.dim)
    scratch = 0 if form is WeightFormat.BF16 and setup.has_bf16 else max(sizes)
    return ceil(PREFETCHED_LAYERS * form.bytes_per_value * sum(sizes)) + width * (other + scratch)


def _offloaded_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of a process for layers that wait to be copied, pinned beside a GPU, and for an embedding."""
    model, form = config.model, WeightFormat(config.base_format)
    embedding = 0 if model.tied else 2 * model.vocab * model.dim
    if form is WeightFormat.BF16 and setup.device == "cpu":
        return embedding
    codes = {WeightFormat.BF16: 2.0, WeightFormat.INT8: 1.0, WeightFormat.INT4: 0.5}[form]
    parts = [ceil(each * size) for size in _matrix_sizes(model) for each in (codes, form.bytes_per_value - codes)]
    return embedding + model.layers * sum(map(pinned_bytes if setup.device != "cpu" else int, parts))


def pinned_bytes(size: int) -> int:
    """Return the memory that torch pins for a tensor of `size` bytes: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0


def _copied_bytes(config: TrainingConfig, setup: TrainerSetup) -> int:
    """Return the memory of copies of parameters: copies in bf16, or tensors that a rank gathers, with their gradients.

    A rank gathers the tensors outside the layers, the layer that is computed, and the next one.
    """
    if not setup.is_sharded or config.adapter is not None:
        return 2 * config.parameters if setup.has_bf16 else 0
    model = config.model
    ends, width = _values_outside_layers(model), 2 if setup.has_bf16 else 4
    layer = (model.parameters - ends) // model.layers
    return (ends + 2 * layer) * 2 * width + max(ends, layer) * 4


@dataclass(frozen=True)
class StepPlan:
    """Parts of a step.  units: sequences, or pairs, computed at once.  recomputed: layers that are computed again."""

    units: int
    recomputed: int


def step_plan(config: TrainingConfig, setup: TrainerSetup) -> StepPlan:
    """Return the division of a rank's step: on a CPU the actual one, on a GPU the one that takes the least memory."""
    if setup.device != "cpu" or config.spares_memory:
        return StepPlan(1, config.model.layers)
    plan = cpu_plan(config.model, config.data.sequence_length, config.unit_rows, bf16=setup.bf16)
    return StepPlan(min(-(-config.data.sequences_per_step // setup.ranks), plan.units), plan.recomputed)


def cpu_plan(model: ModelConfig, length: int, unit_rows: int = 1, *, bf16: bool = False) -> StepPlan:
    """Return a CPU's division of a step of units of `unit_rows` sequences of `length` tokens."""
    tokens = unit_rows * length
    units = ACTIVATION_BYTES // (tokens * _saved_bytes(model, bf16))
    if units:
        return StepPlan(units, 0)
    return StepPlan(1, recomputed_layers(model, tokens, KEPT_BYTES, bf16=bf16))


def recomputed_layers(model: ModelConfig, tokens: int, most: int, *, bf16: bool) -> int:
    """Return the fewest layers to compute again so that the activations of `tokens` tokens take at most `most` bytes."""
    fitting = (count for count in range(model.layers) if tokens * _saved_bytes(model, bf16, count) <= most)
    return next(fitting, model.layers)


def _values_outside_layers(model: ModelConfig) -> int:
    """Return the number of parameters of the embedding, the output weights and the last norm."""
    return (1 if model.tied else 2) * model.vocab * model.dim + model.dim


def _state_bytes(config: TrainingConfig) -> int:
    """Return the memory of parameters, gradients and moments, and of the copy of a fragment in a streamed run.

    Embeddings and output weights are AdamW's in any case.
    """
    model = config.model
    kept = 4 * -(-config.parameters // config.fragments) if config.is_streamed else 0
    if config.inner.optimizer == "adamw":
        return STATE_BYTES * config.parameters + kept
    ends = _values_outside_layers(model)
    return STATE_BYTES * ends + MUON_STATE_BYTES * (model.parameters - ends) + kept


def _saved_bytes(model: ModelConfig, bf16: bool, recomputed: int = 0) -> int:
    """Return the bytes per token that the forward pass keeps for the backward pass.

    A layer that is computed again keeps only its input; the values of one such layer at a time are in memory.

    Each layer keeps these vectors in fp32:

    * with the model's width: the inputs of attention and feed-forward;
    * if queries and keys are normed: both before the norm;
    * one value for each head and each norm.

    Each layer also keeps these vectors in the precision of products:

    * with the model's width: the inputs of attention and feed-forward, normed;
    * with the queries' width: the query, and the attention's output; with the keys' width: key and value;
    * with the feed-forward's width: the gate, its activation, the other branch, and the product of both.

    After the last layer, its output is kept, also normed, and the gradient of the output.
    """
    kept = model.layers - recomputed + (1 if recomputed else 0)
    ends = (4 + 2 * (2 if bf16 else 4)) * model.dim
    return kept * _layer_bytes(model, bf16) + recomputed * 4 * model.dim + ends


def _layer_bytes(model: ModelConfig, bf16: bool) -> int:
    """Return the bytes per token that one layer keeps, as `_saved_bytes` describes them."""
    width = 2 if bf16 else 4
    normed = model.query_width + model.kv_width + model.heads + model.kv_heads if model.qk_norm else 0
    sums = 2 * model.dim + normed + model.heads + 2
    products = 2 * model.dim + 2 * (model.query_width + model.kv_width) + 4 * model.ffn
    return 4 * sums + width * products


def _factor_bytes(config: TrainingConfig, layers: int, bf16: bool) -> int:
    """Return the bytes per token by which layers with factors keep more than `_saved_bytes`; may be negative.

    They keep the product with A of each projection that has factors, and not the inputs of frozen projections.
    """
    model, adapter = config.model, config.adapter
    assert adapter is not None
    unkept = {"all": 0, "attention": model.dim + model.ffn, "mlp": model.dim}[adapter.targets]
    return layers * (len(PROJECTIONS[adapter.targets]) * adapter.rank - unkept) * (2 if bf16 else 4)


def _cache_bytes(model: ModelConfig, rows: int, width: int) -> int:
    """Return the memory of the keys and values, the tokens and the hidden states of a generator's rows."""
    return 2 * model.layers * rows * model.kv_width * width + rows * (8 + 2 * model.dim)


def generator_memory(model: ModelConfig, length: int, device: str) -> TrainerMemory:
    """Estimate the memory of a process that completes one sequence of `length` tokens at a time.

    Loading needs no second copy of the weights: they come in blocks.
    """
    width, tokens = 4 if device == "cpu" else 2, min(length, PREFILL_TOKENS)
    weights, group = width * model.parameters, model.heads // model.kv_heads
    passing = tokens * (_passing_values(model) * 4 + group * (length + 1) * width * 2) + model.vocab * CHOICE_BYTES
    needed = weights + _cache_bytes(model, length + 2, width) + passing
    if device == "cpu":
        return TrainerMemory(CPU_PROCESS_BYTES + needed, 0)
    return TrainerMemory(CUDA_PROCESS_BYTES, CUDA_CONTEXT_BYTES + needed)


def _verifying_bytes(config: TrainingConfig, rl: RlConfig, width: int) -> int:
    """Return the memory of verifying: a copy of a version for the products, and a pass over some rollouts."""
    model, weights = config.model, width * config.parameters
    tokens = max(rl.micro_batch_tokens, rl.row_tokens)
    judged = max(model.vocab, min(CHOICES, tokens * model.vocab)) * (CHOICE_BYTES + 32)
    return weights + tokens * _passing_values(model) * 4 + judged


def _comparing_bytes(config: TrainingConfig, tokens: int, device: str) -> int:
    """Return the memory of a pass with the reference weights over `tokens` tokens, before the first step.

    The weights take the place of the gradient; on a CPU the file from which they are read also counts.  A model with factors
    needs none.
    """
    model, weights = config.model, 2 * config.parameters if device == "cpu" and config.adapter is None else 0
    return weights + tokens * _passing_values(model) * 4 + POLICY_LOGIT_BYTES * _logits(model, tokens)


def _passing_values(model: ModelConfig) -> int:
    """Return the number of values per token in memory during a pass without gradients, which are the values of one layer."""
    return 4 * model.dim + 6 * model.query_width + 3 * model.ffn


def _logits(model: ModelConfig, tokens: int) -> int:
    """Return the number of logits in memory at once in the loss on `tokens` tokens."""
    return min(tokens, LOSS_TOKENS, max(1, LOSS_LOGITS // model.vocab)) * model.vocab


def _step_bytes(config: TrainingConfig, tokens: int, bf16: bool, recomputed: int = 0, logit_bytes: int = 4) -> int:
    """Return the peak memory of a forward and backward pass besides parameters and gradients.

    recomputed: layers that are computed again.  logit_bytes: bytes held per logit in one chunk of the loss.
    """
    model = config.model
    embedding, logits = model.vocab * model.dim, _logits(model, tokens)
    saved = tokens * _saved_bytes(model, bf16, recomputed)
    if config.adapter is not None:  # no gradient has the size of a matrix
        saved += tokens * _factor_bytes(config, model.layers - recomputed + bool(recomputed), bf16)
        used = saved + tokens * 8 * (2 * model.dim + model.ffn)
        return used + min(int(FACTORS_HELD * used), MAX_HELD_BYTES) + logit_bytes * logits
    loss = logit_bytes * logits + (6 if bf16 else 4) * embedding  # with the gradient of the output weights
    passing = tokens * 8 * (2 * model.dim + model.ffn) + 6 * model.ffn * model.dim  # gradients of a layer
    passing += 4 * embedding if model.tied else 0
    used = max(saved + max(loss, 8 * embedding, passing), 12 * embedding)
    chunk = (2 if bf16 else 4) * logits
    large = sum(size for size in (chunk, 4 * embedding) if size > LARGE_BYTES)
    return used + min(int(HELD * max(0, used - large)), MAX_HELD_BYTES) + chunk
