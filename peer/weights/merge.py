"""Merge of several Hugging Face folders into one.  The arithmetic is in `trainer.weights.merging`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import ExitCode, PeerError
from peer.weights.new_folder import check_room, check_target, published_as, told
from peer.weights.tokenizer_files import take_tokenizer
from trainer.weights.merging import Linear, Rule, Slerp, Ties, merged
from trainer.weights.numbers import ExportFormat, FolderError
from trainer.weights.reading import WeightsFolder
from trainer.weights.writing import write_folder

__all__ = ["ExportFormat", "MergeOptions", "Merged", "merge"]

CONTEXT = 2048
"""Context that transformers assumes for a Llama whose config.json gives none."""


@dataclass(frozen=True)
class MergeOptions:
    """Options of a merge; None for the default.  weights: one for each model."""

    rule: str = "linear"
    weights: tuple[float, ...] | None = None
    t: float | None = None
    base: Path | None = None
    density: float | None = None
    scale: float | None = None


@dataclass(frozen=True)
class Merged:
    """Result of a merge.  tokenizer: the folder has one."""

    parameters: int
    size_bytes: int
    tokenizer: bool


def merge(
    models: Sequence[Path],
    target: Path,
    options: MergeOptions,
    form: ExportFormat,
    on_progress: Callable[[float], None] = lambda share: None,
) -> Merged:
    """Write the merge of `models` to the new folder `target`.  Raises `PeerError`.

    Tokenizer, end of text and context are the first model's (of ties: the base's).
    """
    check_target(target)
    rule = _rule(len(models), options)
    sources = list(models) if options.base is None else [options.base, *models]
    try:
        folders = [WeightsFolder(source) for source in sources]
        first = folders[0]
        with published_as(target) as unfinished:
            check_room(unfinished, form.width * first.config.parameters)
            has_tokenizer = take_tokenizer(first.folder, unfinished)
            write_folder(
                unfinished,
                first.config,
                told(merged(folders, rule), first.config.parameters, on_progress),
                form,
                context=first.config.context or CONTEXT,
                eos=first.ends,
                generation=first.generation,
            )
            total = sum(path.stat().st_size for path in unfinished.iterdir())
    except FolderError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
    return Merged(first.config.parameters, total, has_tokenizer)


RULES_OF = {"weights": ("linear", "ties"), "t": ("slerp",), "base": ("ties",), "density": ("ties",), "scale": ("ties",)}
"""Rules that have each option."""


def _rule(models: int, options: MergeOptions) -> Rule:
    """Return the rule for so many models beside a base; raises `PeerError`."""
    for name in RULES_OF:
        if getattr(options, name) is not None and options.rule not in RULES_OF[name]:
            raise PeerError(
                f"{options.rule} has no --{name}, which is of {' and '.join(RULES_OF[name])}; leave it out, or "
                "name another --rule",
                ExitCode.USAGE,
            )
    weights = options.weights or (1.0,) * models
    if len(weights) != models:
        raise PeerError(f"{models} models have {models} weights, and not {len(weights)}; give one for each", ExitCode.USAGE)
    if options.rule == "ties" and options.base is None:
        raise PeerError("ties starts from a base; name it with --base", ExitCode.USAGE)
    if (models < 2 and options.rule != "ties") or (options.rule == "slerp" and models != 2):
        raise PeerError(
            f"{options.rule} takes two models{' or more' * (options.rule != 'slerp')}; give as many", ExitCode.USAGE
        )
    try:
        match options.rule:
            case "slerp":
                return Slerp(_or(options.t, 0.5))
            case "ties":
                return Ties(weights, _or(options.density, 0.2), _or(options.scale, 1.0))
            case _:
                return Linear(weights)
    except ValueError as error:
        raise PeerError(f"{error}; give other numbers", ExitCode.USAGE) from error


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
