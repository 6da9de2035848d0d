"""What to train, as the run's manifest says it.

Imports nothing outside the standard library, so that the peer process can read it without loading torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from trainer.models.llama.config import ModelConfig
from trainer.rl.config import RlConfig
from trainer.section import Section


@dataclass(frozen=True)
class DataConfig(Section):
    """What is read.  sequence_length: tokens predicted in a window.  held_out_percent: of files, by hash of their path.

    format: "text", or "chat" for chats of which what the assistant says counts.  packed: whether several chats share a row.
    """

    corpus: str
    sequence_length: int
    sequences_per_step: int
    held_out_percent: int
    format: str = "text"
    packed: bool = True


@dataclass(frozen=True)
class TokenizerConfig(Section):
    """Of a model that does not read bytes.  template: a name in `trainer.data.templates`.  ends: numbers of end tokens."""

    template: str
    ends: tuple[int, ...]

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """As `Section.from_mapping`; a list of numbers is taken like a tuple."""
        return super().from_mapping({**section, "ends": tuple(section.get("ends", ()))})


@dataclass(frozen=True)
class InnerConfig(Section):
    """AdamW and its schedule.  warmup_steps: of the swarm (round * H + local step).  cooldown: share of the run's end."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip_norm: float
    z_loss: float
    schedule: str
    warmup_steps: int
    cooldown: float
    joiner_warmup_steps: int


@dataclass(frozen=True)
class TrainingConfig:
    """All that a trainer needs to know of a run.

    rl, environment: of an RL run; None and empty in others.  environment: with its options, as the manifest names it.
    tokenizer: None for bytes.  files: where the run's own files lie here, by name.
    """

    seed: int
    model: ModelConfig
    data: DataConfig
    inner: InnerConfig
    inner_steps: int
    lanes: int
    chunk_parameters: int
    rl: RlConfig | None = None
    environment: str = ""
    tokenizer: TokenizerConfig | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> TrainingConfig:
        """From `{seed, model, data, inner, inner_steps, max_members, chunk_parameters}` of a manifest.

        In an RL run there are `{rl, environment}` too, and a tokenizer in one that has it; `files` are the peer's to say.
        """
        return cls(
            seed=int(sections["seed"]),
            model=ModelConfig.from_mapping(sections["model"]),
            data=DataConfig.from_mapping(sections["data"]),
            inner=InnerConfig.from_mapping(sections["inner"]),
            inner_steps=int(sections["inner_steps"]),
            lanes=2 * int(sections["max_members"]),
            chunk_parameters=int(sections["chunk_parameters"]),
            rl=RlConfig.from_mapping(sections["rl"]) if "rl" in sections else None,
            environment=str(sections.get("environment", "")),
            tokenizer=TokenizerConfig.from_mapping(sections["tokenizer"]) if "tokenizer" in sections else None,
            files=dict(sections.get("files", {})),
        )

    @property
    def windows_per_round(self) -> int:
        """Windows one lane may read in one round."""
        return self.inner_steps * self.data.sequences_per_step

    @property
    def tokens_per_step(self) -> int:
        """Tokens predicted in one inner step."""
        return self.data.sequences_per_step * self.data.sequence_length
