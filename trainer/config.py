"""Configuration of training, as given in the run's manifest.

`protocol.formats` has the sections that peers read too.  This module loads neither torch nor numpy, so that the peer
process can read it without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.formats.adapter import AdapterConfig, WeightFormatName, adapter_parameters
from protocol.formats.model import ModelConfig
from protocol.formats.rl import RlConfig
from protocol.formats.section import Section
from protocol.formats.training import RECEIPT_BYTES, DataConfig, InnerConfig, SamplesConfig, TokenizerConfig

OWN_CORPUS = "own corpus"
"""Name of the manifest of this member's own corpus, in a run on the members' own data."""
SLOTS = 32
"""Default number of sequences generated at a time."""
SPARE_VERSIONS = 2
"""Versions kept besides the `max_async` older versions that rollouts may use: the newest, and one about to be dropped."""
CHOICES = 1 << 22
"""Logits whose tokens are verified together; each needs about 50 bytes for noise and sums."""


class SourceConfig(Section):
    """Source of a run's rows.  corpus: name of the run's file with the manifest.  source: name in the corpus."""

    name: str
    corpus: str
    source: str


class PhaseConfig(Section):
    """Stretch of rows from `start` on, mixed by the `weights` of the sources, in their order."""

    start: int
    weights: list[int]


class TrainingData(DataConfig):
    """Section on the training data, with the mixture of corpora that it is read from."""

    sources: list[SourceConfig] = []
    phases: list[PhaseConfig] = []


@dataclass(frozen=True)
class TrainingConfig:
    """Configuration of a trainer for one run.

    rl, environment: for an RL run; None and empty in other runs. environment: with its options, as the manifest names it.
    tokenizer: None for bytes. samples: None without prompts. files: paths of the run's own files on this computer, by name.
    blocks: folders with blocks of the run's corpora. spares_memory: True after the process has run out of memory: it
    computes one unit at a time, and all layers again, and generates half as many sequences at once. compiles: "on" or "off"
    to have torch compile the layers or not, "auto" to compile them on a GPU. offload: True if parameters, gradients and
    moments lie in the memory of the computer, and layers are copied to a GPU when it computes them; with an adapter, if the
    frozen layers do so, and nothing else. fragments: of the state; a round has a contribution to one of them. delay: steps
    that may be done before the result of the last round is needed. adapter: factors that are trained while the model stays
    as it is; None if the whole model is trained. base_format: format of the model's matrices then. receipts: True if the
    trainer keeps receipts of the rows that it reads.
    """

    seed: int
    model: ModelConfig
    data: TrainingData
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
    adapter: AdapterConfig | None = None
    base_format: WeightFormatName = "bf16"
    receipts: bool = False

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any]) -> TrainingConfig:
        """Read `{seed, model, data, inner, inner_steps, chunk_parameters, codec}` of a manifest.

        A streamed run adds `{fragments, delay}`, a run with an adapter `{adapter, base_format}`, an RL run
        `{rl, environment}`, a run that audits `receipts`, and a run with a tokenizer or prompts `tokenizer` or `samples`;
        the peer adds `files`, `blocks`, `spares_memory`, `compiles` and `offload`.
        """
        return cls(
            seed=int(sections["seed"]),
            model=ModelConfig.from_mapping(sections["model"]),
            data=TrainingData.from_mapping(sections["data"]),
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
            adapter=AdapterConfig.from_mapping(sections["adapter"]) if "adapter" in sections else None,
            base_format=sections.get("base_format", "bf16"),
            receipts=bool(sections.get("receipts", False)),
        )

    @property
    def receipt_bytes(self) -> int:
        """Bytes of the receipts of a round; 0 if the trainer keeps none."""
        return RECEIPT_BYTES * self.inner_steps * self.data.sequences_per_step if self.receipts else 0

    @property
    def parameters(self) -> int:
        """Number of values that are trained: the model's, or the adapter's."""
        return self.model.parameters if self.adapter is None else adapter_parameters(self.model, self.adapter)

    @property
    def flops_per_token(self) -> float:
        """Arithmetic of a trained token, in floating point operations; a frozen matrix has no gradient of its own."""
        whole = self.model.flops_per_token(self.data.sequence_length)
        return whole if self.adapter is None else whole - 2.0 * self.model.product_parameters + 6.0 * self.parameters

    @property
    def is_sharded_alone(self) -> bool:
        """True if even a single process uses torch's FSDP, which keeps its parameters in the memory of the computer."""
        return self.offload and self.adapter is None

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
