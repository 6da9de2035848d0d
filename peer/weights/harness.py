"""Tasks of EleutherAI's lm-evaluation-harness on a model's folder, for `peer eval --harness`.

The harness runs in a process of its own, in an empty folder, and loads the model with transformers.  It runs no code of a
model or of a data set, and refuses the tasks that it marks as unsafe.  It fetches data sets from the hub, or takes them from
the cache with HF_HUB_OFFLINE=1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peer.environment import ChildKind, child_environment
from peer.errors import ExitCode, PeerError, told_as
from peer.weights.tokenizer_files import PLAIN_CLASS, folder_tokenizer, is_plain, take_config, take_tokenizer
from protocol.formatting import clean
from trainer.extras import install_command
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import FolderError

PACKAGES = ("lm_eval", "transformers", "accelerate")
TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
BATCH = 8
"""Number of texts that the model reads at a time."""
MAX_RESULTS = 64 << 20
LAST_WORDS = 4096
BYTES_VOCABULARY, TEXT_END = 256, "<|endoftext|>"


@dataclass(frozen=True)
class HarnessScore:
    """A metric of a task.

    name: its name, with the filter of answers if it has one.  error: standard error; None if unknown.

    shots: solved examples in each prompt.  samples: questions asked; None for a group of tasks.
    """

    task: str
    metric: str
    value: float
    error: float | None
    shots: int
    samples: int | None


@dataclass(frozen=True)
class HarnessResults:
    """Results of all tasks.  version: version of the harness."""

    version: str
    scores: list[HarnessScore]


@dataclass(frozen=True)
class HarnessOptions:
    """Options of an evaluation.

    limit: largest number of questions per task; None for all.  device: torch's name of a device, or "auto".
    """

    tasks: Sequence[str]
    limit: int | None
    device: str


def evaluate(model: Path, options: HarnessOptions, show: Callable[[str], None]) -> HarnessResults:
    """Return the scores of the model in a folder.  show: called with the output of the harness.  Raises `PeerError`."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise PeerError(f"{missing[0]} is not installed; run {install_command('eval')}", ExitCode.INPUT)
    tasks = [task_of(task) for task in options.tasks]
    with TemporaryDirectory(prefix="peer-harness-") as place:
        results = Path(place) / "results"
        words = command(model, _tokenizer_for(model, Path(place) / "tokenizer"), results, tasks, options)
        code, last = _run(words, Path(place), show)
        found = sorted(results.rglob("results_*.json"))
        if code or not found:
            raise PeerError(
                f"the harness failed: {last or f'exit code {code}'}; `{PACKAGES[0]} ls tasks` lists its tasks, whose data "
                "sets it fetches from the hub"
            )
        with found[-1].open(encoding="utf-8") as file:
            return results_in(file.read(MAX_RESULTS))


def task_of(word: str) -> str:
    """Return the name of a task, or the absolute path of a YAML file that describes one.  Raises `PeerError`."""
    path = Path(word).absolute()
    if word.endswith(".yaml") and path.is_file() and "," not in str(path):
        return str(path)
    if TASK.fullmatch(word) is None or word.endswith(".yaml"):
        raise PeerError(
            f"{clean(word, 200)} is not a task of the harness; give names such as arc_easy,hellaswag, or a YAML file",
            ExitCode.INPUT,
        )
    return word


def command(model: Path, tokenizer: Path, results: Path, tasks: Sequence[str], options: HarnessOptions) -> list[str]:
    """Return the command line of the harness, which takes the model's arguments as JSON."""
    arguments = {"pretrained": str(model), "tokenizer": str(tokenizer), "trust_remote_code": False}
    return [
        *(sys.executable, "-P", "-m", PACKAGES[0], "run"),  # -P: nothing is imported from the working directory
        *("--model", "hf", "--model_args", json.dumps(arguments)),
        *("--tasks", ",".join(tasks), "--batch_size", str(BATCH), "--output_path", str(results)),
        *(["--device", options.device] if options.device != "auto" else []),
        *(["--limit", str(options.limit)] if options.limit is not None else []),
    ]


def results_in(text: str) -> HarnessResults:
    """Return the results in the file that the harness writes.  Raises `PeerError`."""
    try:
        fields = json.loads(text)
        scores = [
            score
            for task, values in fields["results"].items()
            for score in _scores(str(task), values, fields["n-shot"].get(task), fields["n-samples"].get(task))
        ]
        return HarnessResults(clean(str(fields["lm_eval_version"])), scores)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PeerError(
            f"the harness wrote results of an unknown form ({error!r}); run {install_command('eval', again=True)}"
        ) from error


def _scores(task: str, values: Mapping[str, Any], shots: Any, samples: Any) -> list[HarnessScore]:
    """Return a task's scores.  A key is "acc,none": the metric and the filter; its standard error is "acc_stderr,none"."""
    found = []
    for key, value in values.items():
        metric, comma, filter = key.partition(",")
        if not comma or metric.endswith("_stderr") or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        error = values.get(f"{metric}_stderr,{filter}")
        name = metric if filter == "none" else f"{metric} ({filter})"
        counted = None if samples is None else int(samples["effective"])
        known = float(error) if isinstance(error, int | float) and isfinite(error) else None
        found.append(HarnessScore(clean(task, 100), clean(name, 60), float(value), known, int(shots or 0), counted))
    return found


def _run(words: Sequence[str], place: Path, show: Callable[[str], None]) -> tuple[int, str]:
    """Run the harness; return its exit code and the last line that it wrote to standard error."""
    said = ""
    with subprocess.Popen(
        words,
        cwd=place,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=child_environment(ChildKind.HARNESS),
    ) as process:
        assert process.stderr is not None
        try:
            while part := os.read(process.stderr.fileno(), 1 << 16):
                text = part.decode("utf-8", "replace")
                show(text)
                said = (said + text)[-LAST_WORDS:]
        except BaseException:
            process.kill()
            raise
    lines = said.strip().splitlines()
    return process.returncode, clean(lines[-1], 300) if lines else ""


# ------------------------------------------------------------------------------------------------------------------------
# Tokenizer in the form in which transformers reads one.  Our folders may lack a tokenizer, or may not say which token ends a
# text.


def _tokenizer_for(model: Path, place: Path) -> Path:
    """Return `place` with copies of the tokenizer's files, completed for a folder that lacks some of them."""
    with told_as(ExitCode.INPUT, FolderError):
        weights = WeightsFolder(model)
    found = folder_tokenizer(model, weights.config.vocab)
    place.mkdir()
    take_tokenizer(model, place)
    if found is not None and (place / "tokenizer_config.json").exists():
        if not is_plain(place):
            take_config(model, place)
        return place
    if found is not None:
        names = {number: name for name, number in found.special.items()}
        end = next((names[end] for end in weights.ends if end in names), None)
    elif weights.config.vocab == BYTES_VOCABULARY:
        _write_bytes_tokenizer(place / "tokenizer.json")
        end = TEXT_END
    else:
        raise PeerError(
            f"{model} has no tokenizer; copy tokenizer.json from the model from which it was made", ExitCode.INPUT
        )
    described = {"tokenizer_class": PLAIN_CLASS, **({"eos_token": end} if end is not None else {})}
    (place / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    return place


def _write_bytes_tokenizer(path: Path) -> None:
    """Write the tokenizer of models that read bytes: a token's number is the byte's value, and byte 0 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shown = [byte for byte in range(256) if chr(byte).isprintable() and byte != 0x20]
    others = iter(range(256, 512))  # GPT-2's letters for bytes: the printable characters, and later ones for the others
    letters = [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]
    made = Tokenizer(models.BPE({letter: byte for byte, letter in enumerate([TEXT_END, *letters[1:]])}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.save(str(path))
