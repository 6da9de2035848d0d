"""Configuration of training, as given in the run's manifest.

This module imports only the standard library, so that the peer process can read it without loading torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from trainer.models.llama.config import ModelConfig
from trainer.rl.config import RlConfig
from trainer.section import SectionFields

OWN_CORPUS = "own corpus"
"""Name of the manifest of this member's own corpus, in a run on the members' own data."""


@dataclass(frozen=True)
class SourceConfig(SectionFields):
    """Source of a run's rows.  corpus: name of the run's file with the manifest.  source: name in the corpus."""

    name: str
    corpus: str
    source: str


@dataclass(frozen=True)
class PhaseConfig(SectionFields):
    """Stretch of rows from `start` on, mixed by the `weights` of the sources, in their order."""

    start: int
    weights: tuple[int, ...]

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section as `SectionFields.from_mapping` does; accept a list of weights as a tuple."""
        return super().from_mapping({**section, "weights": tuple(section.get("weights", ()))})


@dataclass(frozen=True)
class DataConfig(SectionFields):
    """Section on the training data.

    sequence_length: tokens predicted in a row. format: "text", "chat" for chats of which only the assistant's messages
    count, or "preference". sources, phases: mixture of corpora. source: "local" for data of this member's own, a corpus that
    the peer has built. documents: "masked" or "joined", for text. beta, label_smoothing: of the loss on preferences.
    """

    sequence_length: int
    sequences_per_step: int
    format: str = "text"
    sources: tuple[SourceConfig, ...] = ()
    phases: tuple[PhaseConfig, ...] = ()
    documents: str = "joined"
    beta: float = 0.1
    label_smoothing: float = 0.0
    source: str = "corpora"

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section as `SectionFields.from_mapping` does, with its sources and phases."""
        sources = tuple(SourceConfig.from_mapping(each) for each in section.get("sources", ()))
        phases = tuple(PhaseConfig.from_mapping(each) for each in section.get("phases", ()))
        return super().from_mapping({**section, "sources": sources, "phases": phases})


@dataclass(frozen=True)
class TokenizerConfig(SectionFields):
    """Section on the tokenizer, absent if the model reads bytes.

    template: a name in `trainer.data.templates`.  ends: numbers of the end tokens.
    """

    template: str
    ends: tuple[int, ...]

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section as `SectionFields.from_mapping` does; accept a list of numbers as a tuple."""
        return super().from_mapping({**section, "ends": tuple(section.get("ends", ()))})


@dataclass(frozen=True)
class SamplesConfig(SectionFields):
    """Section on the samples of an evaluation.  tokens: most tokens of the completion of each prompt."""

    prompts: tuple[str, ...]
    tokens: int

    @classmethod
    def from_mapping(cls, section: Mapping[str, Any]) -> Self:
        """Return the section as `SectionFields.from_mapping` does; accept a list of prompts as a tuple."""
        return super().from_mapping({**section, "prompts": tuple(section.get("prompts", ()))})


@dataclass(frozen=True)
class InnerConfig(SectionFields):
    """Section on the optimiser and its schedule.

    warmup_steps: counted over the swarm (round * H + local step). cooldown: final share of the run. optimizer: "adamw" or
    "muon".
    """

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
    optimizer: str = "adamw"


@dataclass(frozen=True)
class TrainingConfig:
    """Configuration of a trainer for one run.

    rl, environment: for an RL run; None and empty in other runs. environment: with its options, as the manifest names it.
    tokenizer: None for bytes. samples: None without prompts. files: paths of the run's own files on this computer, by name.
    blocks: folders with blocks of the run's corpora. spares_memory: True after the process has run out of memory: it
    computes one unit at a time, and all layers again, and generates half as many sequences at once. compiles: "on" or "off"
    to have torch compile the layers or not, "auto" to compile them on a GPU. offload: True if parameters, gradients and
    moments lie in the memory of the computer, and layers are copied to a GPU when it computes them. fragments: of the state;
    a round has a contribution to one of them. delay: steps that may be done before the result of the last round is needed.
    """

    seed: int
    model: ModelConfig
    data: DataConfig
    inner: InnerConfig
    inner_steps: int
    chunk_parameters: int
    codec: str = "int4"
    rl: RlConfig | None = None
    environment: str = ""
    tokenizer: TokenizerConfig | None = None
    samples: SamplesConfig | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    blocks: tuple[str, ...] = ()
    spares_memory: bool = False
    compiles: str = "auto"
    offload: bool = False
    fragments: int = 1
    delay: int = 0

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> TrainingConfig:
        """Read `{seed, model, data, inner, inner_steps, chunk_parameters, codec}` of a manifest.

        A streamed run adds `{fragments, delay}`, an RL run `{rl, environment}`, and a run with a tokenizer or prompts
        `tokenizer` or `samples`; the peer adds `files`, `blocks`, `spares_memory`, `compiles` and `offload`.
        """
        return cls(
            seed=int(sections["seed"]),
            model=ModelConfig.from_mapping(sections["model"]),
            data=DataConfig.from_mapping(sections["data"]),
            inner=InnerConfig.from_mapping(sections["inner"]),
            inner_steps=int(sections["inner_steps"]),
            chunk_parameters=int(sections["chunk_parameters"]),
            codec=str(sections["codec"]),
            rl=RlConfig.from_mapping(sections["rl"]) if "rl" in sections else None,
            environment=str(sections.get("environment", "")),
            tokenizer=TokenizerConfig.from_mapping(sections["tokenizer"]) if "tokenizer" in sections else None,
            samples=SamplesConfig.from_mapping(sections["samples"]) if "samples" in sections else None,
            files=dict(sections.get("files", {})),
            blocks=tuple(sections.get("blocks", ())),
            spares_memory=bool(sections.get("spares_memory", False)),
            compiles=str(sections.get("compiles", "auto")),
            offload=bool(sections.get("offload", False)),
            fragments=int(sections.get("fragments", 1)),
            delay=int(sections.get("delay", 0)),
        )

    @property
    def is_streamed(self) -> bool:
        """True if the trainer keeps its own parameters from round to round."""
        return self.fragments > 1 or self.delay > 0

    @property
    def unit_rows(self) -> int:
        """Number of rows that are computed together: two for a pair of preferences."""
        return 2 if self.data.format == "preference" else 1

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens predicted in one inner step."""
        return self.data.sequences_per_step * self.data.sequence_length
