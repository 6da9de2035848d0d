"""Peak memory of a trainer, estimated only from the run's numbers, before any allocation.

This module imports only the standard library, so that the peer can use it without loading torch. On a CPU the estimate is
exact enough to refuse a run (`python -m benchmarks.memory` compares it with real trainers), because this module also chooses
the CPU's micro-batch, and the layers that the backward pass computes again. A larger micro-batch is no faster on a CPU. If
it did not fit, the system would end the process, instead of raising an error on which the trainer could halve the
micro-batch. On a GPU the trainer measures its first step and takes as much as fits (`trainer.optim`), so the estimate is for
the least: a step with one sequence, of which all layers are computed again.

Shared memory (theta and the contribution) belongs to the peer and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from trainer.config import TrainingConfig
from trainer.models.llama.config import ModelConfig
from trainer.rl.config import SLOTS, SPARE_VERSIONS, RlConfig

MB = 1 << 20
EXIT_NO_MEMORY = 4
"""Exit status of a trainer process whose memory is not enough.  Started again, it is told to spare memory."""
ACTIVATION_BYTES = 512 * MB
"""Limit on the activations of a CPU's micro-batch, unless one sequence needs more."""
KEPT_BYTES = 4096 * MB
"""Limit on the activations of one sequence on a CPU; layers beyond it are computed again, which takes a third longer."""
SHARDING_BYTES = 80 * MB
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
POLICY_LOGITS = 6
"""Values held per logit in the policy loss: the logit, the log-probability, the probability, gradients."""
STATE_BYTES = 16
"""Bytes of a parameter, its gradient and Adam's two moments, each in fp32."""
MUON_STATE_BYTES = 12
"""The same for a matrix that Muon updates, which has one moment."""
MAX_HELD_BYTES = 384 * MB
"""Limit on the memory that the allocator holds in pieces too small to use; the estimate is half of a step's need up to this
limit."""


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


def trainer_memory(
    config: TrainingConfig, device: str, work: TrainerWork = TrainerWork.TRAIN, ranks: int = 1
) -> TrainerMemory:
    """Estimate a trainer's memory on "cpu" or "cuda"; of several ranks, all host memory, and the memory of each GPU.

    Only RL runs have other work than training; RL trainers also verify, and only trainers have several ranks.
    """
    if config.rl is None:
        return _of_reading(config, device) if ranks == 1 else _of_ranks(config, device, ranks)
    model, rl, width = config.model, config.rl, 4 if device == "cpu" else 2
    versions = (rl.max_async + SPARE_VERSIONS) * 2 * model.parameters
    if work is TrainerWork.GENERATE:
        used = versions + _generating_bytes(model, rl, width)
    elif work is TrainerWork.VERIFY:
        used = versions + _verifying_bytes(model, rl, width)
    elif ranks > 1:
        return _learning_of_ranks(config, rl, device, ranks, versions)
    else:
        passes = max(_learning_bytes(model, rl, width), _verifying_bytes(model, rl, width))
        used = versions + STATE_BYTES * model.parameters + passes
        reading = _of_reading(config, device)
        used = max(used, versions + max(reading.host - CPU_PROCESS_BYTES if device == "cpu" else reading.device, 0))
    if device == "cpu":
        return TrainerMemory(CPU_PROCESS_BYTES + used, 0)
    return TrainerMemory(CUDA_PROCESS_BYTES, CUDA_CONTEXT_BYTES + used)


def _learning_bytes(model: ModelConfig, rl: RlConfig, width: int) -> int:
    """Return the memory of a step on rollouts, or of the comparison with reference weights before it.

    On a CPU a micro-batch has its whole size; on a GPU at least one row.
    """
    rows = max(rl.row_tokens, rl.micro_batch_tokens) if width == 4 else rl.row_tokens
    comparing = _comparing_bytes(model, max(rl.micro_batch_tokens, rl.row_tokens), width) if rl.kl_weight else 0
    return max(_step_bytes(model, rows, width, logits_kept=POLICY_LOGITS), comparing)


def _of_ranks(config: TrainingConfig, device: str, ranks: int) -> TrainerMemory:
    if device != "cpu":
        return TrainerMemory(ranks * CUDA_PROCESS_BYTES, sharded_bytes(config, ranks))
    state, whole = _state_bytes(config), _gathered_bytes(config.model, device)
    return TrainerMemory(state + ranks * (_of_reading(config, device).host - state + whole + SHARDING_BYTES), 0)


def _learning_of_ranks(config: TrainingConfig, rl: RlConfig, device: str, ranks: int, versions: int) -> TrainerMemory:
    """Estimate the memory of ranks that learn from rollouts; rank 0 also keeps the versions, and verifies.

    versions: bytes of the versions.
    """
    model, width, reading = config.model, 4 if device == "cpu" else 2, _of_ranks(config, device, ranks)
    state, whole = STATE_BYTES * model.parameters, _gathered_bytes(model, device)
    learning, verifying = _learning_bytes(model, rl, width), _verifying_bytes(model, rl, width)
    if device == "cpu":
        each = CPU_PROCESS_BYTES + SHARDING_BYTES + whole
        return TrainerMemory(versions + max(reading.host, state + ranks * each + max(ranks * learning, verifying)), 0)
    used = CUDA_CONTEXT_BYTES + state // ranks + whole + max(learning, verifying)
    return TrainerMemory(reading.host, versions + max(reading.device, used))


def _gathered_bytes(model: ModelConfig, device: str) -> int:
    """Return the memory of what a rank gathers: the tensors outside the layers, and two layers, with their gradients.

    On a GPU they are gathered in bf16, with gradients in fp32, which the loss also sums up.
    """
    ends = _values_outside_layers(model)
    layer = (model.parameters - ends) // model.layers
    return 8 * (ends + 2 * layer) if device == "cpu" else 8 * ends + 4 * model.vocab * model.dim + 14 * layer


def sharded_bytes(config: TrainingConfig, ranks: int) -> int:
    """Return the memory of each of several GPUs that share one trainer, computing one sequence each, all layers again.

    Each has its share of the state, and gathers parameters (`_gathered_bytes`).  The formula was not compared with GPUs.
    """
    model, length = config.model, config.data.sequence_length * (2 if config.data.format == "preference" else 1)
    whole = _gathered_bytes(model, "cuda")
    activations = length * (_saved_values(model, model.layers) * 2 + 16 * (model.dim + model.ffn))
    return CUDA_CONTEXT_BYTES + _state_bytes(config) // ranks + whole + activations + 2 * _logits(model, length) * 4


def _of_reading(config: TrainingConfig, device: str) -> TrainerMemory:
    model, length, width = config.model, config.data.sequence_length, 4 if device == "cpu" else 2
    unit = 2 if config.data.format == "preference" else 1
    plan = cpu_plan(model, length, unit) if device == "cpu" else StepPlan(1, model.layers)
    needed = _step_bytes(model, min(config.data.sequences_per_step, plan.units) * unit * length, width, plan.recomputed)
    needed += COMPILER_BYTES if plan.recomputed and device == "cpu" else 0
    needed += 2 * model.parameters if width == 2 else 0  # the weights in bf16
    if unit == 2:
        needed = max(needed, _comparing_bytes(model, max(REFERENCE_TOKENS, unit * length), width))
    if device == "cpu":
        return TrainerMemory(CPU_PROCESS_BYTES + _state_bytes(config) + needed, 0)
    return TrainerMemory(CUDA_PROCESS_BYTES, CUDA_CONTEXT_BYTES + _state_bytes(config) + needed)


@dataclass(frozen=True)
class StepPlan:
    """Parts of a step.  units: sequences, or pairs, computed at once.  recomputed: layers that are computed again."""

    units: int
    recomputed: int


def cpu_plan(model: ModelConfig, length: int, unit_rows: int = 1) -> StepPlan:
    """Return how a CPU divides a step of units of `unit_rows` sequences of `length` tokens."""
    unit = unit_rows * length * 4
    units = ACTIVATION_BYTES // (unit * _saved_values(model))
    if units:
        return StepPlan(units, 0)
    return StepPlan(1, recomputed_layers(model, unit_rows * length, KEPT_BYTES))


def recomputed_layers(model: ModelConfig, tokens: int, most: int) -> int:
    """Return the fewest layers to compute again so that the activations of `tokens` tokens take at most `most` bytes."""
    fitting = (count for count in range(model.layers) if tokens * 4 * _saved_values(model, count) <= most)
    return next(fitting, model.layers)


def _values_outside_layers(model: ModelConfig) -> int:
    """Return the number of parameters of the embedding, the output weights and the last norm."""
    return (1 if model.tied else 2) * model.vocab * model.dim + model.dim


def _state_bytes(config: TrainingConfig) -> int:
    """Return the memory of parameters, gradients and moments; embeddings and output weights are AdamW's in any case."""
    model = config.model
    if config.inner.optimizer == "adamw":
        return STATE_BYTES * model.parameters
    ends = _values_outside_layers(model)
    return STATE_BYTES * ends + MUON_STATE_BYTES * (model.parameters - ends)


def _saved_values(model: ModelConfig, recomputed: int = 0) -> int:
    """Return the number of values per token that the forward pass keeps for the backward pass.

    Of a layer that is computed again, only the input is kept, and the values of one such layer at a time.

    Each layer keeps these vectors:

    * with the model's width: the inputs of attention and feed-forward, each also normed;
    * with the queries' width: the query, and the attention's output; with the keys' width: key and value;
    * if queries and keys are normed: both before the norm;
    * with the feed-forward's width: the gate, its activation, the other branch, and the product of both.

    A layer also keeps one value for each head and each norm. After the last layer, its output is kept, also
    normed, and the gradient of the output.
    """
    normed = model.query_width + model.kv_width + model.heads + model.kv_heads if model.qk_norm else 0
    layer = 4 * model.dim + 2 * (model.query_width + model.kv_width) + normed + 4 * model.ffn + model.heads + 2
    kept = model.layers - recomputed + (1 if recomputed else 0)
    return kept * layer + recomputed * model.dim + 3 * model.dim


def _generating_bytes(model: ModelConfig, rl: RlConfig, width: int) -> int:
    """Return the memory of the generator: its weights, on a CPU also the next weights, and all keys and values.

    A sequence has at most as many tokens as a row, because the learner packs it into a row.
    """
    rows = SLOTS * (rl.row_tokens + 2)
    weights = (2 * 4 if width == 4 else 2) * model.parameters
    cache = 2 * model.layers * rows * model.kv_width * width + rows * (8 + 2 * model.dim)
    passing = PREFILL_TOKENS * _passing_values(model) * 4 + SLOTS * model.vocab * CHOICE_BYTES
    return weights + cache + passing


def _verifying_bytes(model: ModelConfig, rl: RlConfig, width: int) -> int:
    """Return the memory of verifying: an fp32 copy of the weights if needed, and a pass over some rollouts."""
    weights = 4 * model.parameters if width == 4 else 0
    tokens = max(rl.micro_batch_tokens, rl.row_tokens)
    judged = min(rl.max_tokens, tokens) * model.vocab * (CHOICE_BYTES + 16)
    return weights + tokens * _passing_values(model) * 4 + judged


def _comparing_bytes(model: ModelConfig, tokens: int, width: int) -> int:
    """Return the memory of a pass with the reference weights over `tokens` tokens, before the first step.

    The weights take the place of the gradient; on a CPU the file that they are read from counts, too.
    """
    weights = 2 * model.parameters if width == 4 else 0
    return weights + tokens * _passing_values(model) * 4 + POLICY_LOGITS * _logits(model, tokens) * 4


def _passing_values(model: ModelConfig) -> int:
    """Return the number of values per token in memory during a pass without gradients, which are the values of one layer."""
    return 4 * model.dim + 6 * model.query_width + 3 * model.ffn


def _logits(model: ModelConfig, tokens: int) -> int:
    """Return the number of logits in memory at once in the loss on `tokens` tokens."""
    return min(tokens, LOSS_TOKENS, max(1, LOSS_LOGITS // model.vocab)) * model.vocab


def _step_bytes(model: ModelConfig, tokens: int, width: int, recomputed: int = 0, logits_kept: int = 2) -> int:
    """Return the peak memory of a forward and backward pass besides parameters and gradients.

    width: bytes of an activation.  recomputed: layers that are computed again.  logits_kept: number of values held per logit
    in one chunk of the loss.
    """
    saved = tokens * _saved_values(model, recomputed) * width
    passing = tokens * 4 * (model.dim + model.ffn) * 4  # gradients of one layer's values
    logits = logits_kept * _logits(model, tokens) * 4
    weights = 3 * model.vocab * model.dim * 4 + 2 * model.ffn * model.dim * 4  # gradients before they are added up
    used = saved + passing + logits + weights
    return used + min(used // 2, MAX_HELD_BYTES)
