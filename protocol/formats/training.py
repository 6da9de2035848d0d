"""Sections on the rows that a trainer reads, its optimiser, its tokenizer, and the samples of an evaluation."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from protocol.formats.section import PRINTABLE, Problems, Section

MAX_STEP_TOKENS = 1 << 26
MAX_PROMPTS = 4
"""Most prompts of a run."""
RECEIPT_BYTES = 130
"""Bytes of the receipt of a row (`trainer.receipts`)."""

Positive = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=0, le=2**40)]


class InnerConfig(Section):
    """The optimizer and its schedule: the rate warms up, and comes down towards the run's total.

    It follows the swarm's steps: round times `inner_steps` plus the local step.
    """

    LATER: ClassVar[frozenset[str]] = frozenset({"optimizer"})

    lr: Positive = 3e-3
    """Peak learning rate."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    eps: Positive = 1e-8
    """Number added to the root of the second moment."""
    weight_decay: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.1
    """Decoupled weight decay, of matrices only."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = 1.0
    """Limit of the gradient's global norm."""
    z_loss: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 2e-4
    """Weight of the max-z loss."""
    schedule: Literal["wsd", "cosine"] = "wsd"
    """Shape of the learning rate after the warm-up: constant, then 1 - sqrt to zero; or a cosine down to a tenth."""
    warmup_steps: Steps = 100
    """Steps over which the rate rises from zero."""
    cooldown: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.2
    """Share of the run's total, at its end, in which the rate of wsd comes down to zero."""
    joiner_warmup_steps: Annotated[int, Field(ge=0, le=100_000)] = 10
    """Steps over which the rate rises for a joiner, whose moments are empty."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Rule of the updates; Muon, for the layers' matrices only, uses AdamW's rates and half of its memory for moments."""


class DataConfig(Section):
    """Amount and form of the rows in an inner step."""

    LATER: ClassVar[frozenset[str]] = frozenset({"format", "documents", "beta", "label_smoothing", "source"})

    sequence_length: Annotated[int, Field(ge=8, le=1 << 17)] = 512
    """Tokens predicted in one window."""
    sequences_per_step: Annotated[int, Field(ge=1, le=1 << 16)] = 4
    """Windows in one inner step of one member."""
    format: Literal["text", "chat", "preference"] = "text"
    """The rows: "text"; "chat", in which only the assistant's turns count; or "preference", pairs of answers (DPO)."""
    documents: Literal["masked", "joined"] = "joined"
    """The documents of a row of text: "masked" (none sees another, and positions restart) or "joined"."""
    beta: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 0.1
    """Strength with which preferences hold the model near the initial weights (DPO's beta)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)] = 0.0
    """Assumed share of preferences whose two answers are swapped (conservative DPO)."""
    source: Literal["corpora", "local"] = "corpora"
    """Origin of the rows: "corpora", those of the run; or "local", each member's own data, which stays on its computer."""

    def _problems(self) -> Problems:
        if self.sequence_length * self.sequences_per_step > MAX_STEP_TOKENS:
            yield (
                "sequence_length sequences_per_step",
                f"sequence_length ({self.sequence_length}) times sequences_per_step ({self.sequences_per_step}) may be "
                f"at most {MAX_STEP_TOKENS} tokens a step; sequences_per_step = {MAX_STEP_TOKENS // self.sequence_length} "
                "would do",
            )


class TokenizerConfig(Section):
    """Layout of conversations, and the tokens that end a turn."""

    template: Literal["raw", "plain", "chatml", "llama3"] = "plain"
    """The layout of a conversation: "raw" (nothing around what is said), "plain", "chatml" (Qwen) or "llama3"."""
    ends: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 20)]], Field(min_length=1, max_length=8)]
    """Numbers of the tokens that end a turn; the first one ends the turns that are learned from."""


class SamplesConfig(Section):
    """Prompts that a member completes at each evaluation, for people: they see how the model's texts change."""

    prompts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]],
        Field(min_length=1, max_length=MAX_PROMPTS),
    ]
    """The prompts, each without line breaks; in a run on chats, preferences or rollouts each is a message of the user."""
    tokens: Annotated[int, Field(ge=1, le=64)] = 48
    """Most tokens of a completion."""

    def _problems(self) -> Problems:
        if len(set(self.prompts)) < len(self.prompts):
            yield ("prompts", "two prompts are the same; remove one of them")
