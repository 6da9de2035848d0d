"""Solve rates of a model: `peer tasks rate`.  The tasks of a file are written to a new file with their rates."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kernels.outside_files import named_file, read_outside
from peer.errors import ExitCode, PeerError, told_as
from peer.files import write_atomically
from peer.weights.folders import check_memory
from peer.weights.tokenizer_files import check_readable, tokenizer_facts
from protocol.formats.rl import RlConfig
from protocol.formatting import clean
from protocol.run.manifest import RunManifest
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import MAX_TOKENIZER_BYTES, ByteTokenizer, TokenizerFile
from trainer.device import pick_device
from trainer.environments.environment import Environment
from trainer.environments.records import BYTE_ORDER_MARK, MAX_LINE_BYTES, SolveRates, read_tasks, told
from trainer.environments.registry import FILE, files_of, open_named, read_name
from trainer.environments.sandbox import SandboxUnavailable
from trainer.environments.task_file import ZSTANDARD, RecordedTasks, digest_of, read_file
from trainer.rl import rating
from trainer.rl.rating import Answer, Rater, Sampling
from trainer.weights.folder import WeightsFolder

# ------------------------------------------------------------------------------------------------------------------------
# Solve rates measured so far, in a file beside the result's file, so that an interrupted measurement can continue.


SUFFIX = ".part"
BF16_BYTES = 2
HEAD_BYTES, LINE_BYTES = 4096, 64
"""Limits of the line that identifies the measurement, and of each rate's line; a longer file is refused."""


Keep = Callable[[int, float], None]
"""Function that stores the rate of a task, so that it outlives this process.  Raises OSError."""


@contextmanager
def kept_rates(path: Path, measured: Mapping[str, Any], tasks: int) -> Iterator[tuple[dict[int, float], Keep]]:
    """Yield the rates stored in `path`, by the task's number in the measured file, and a function that stores a rate.

    measured: facts on which the rates depend.  tasks: number of tasks.  Raises `PeerError` if the stored rates belong to
    another measurement.
    """
    rates = _read(path, measured, tasks)
    lines = [json.dumps(each) + "\n" for each in (measured, *rates.items())]
    write_atomically(path, "".join(lines).encode())  # without a line that a killed process left unfinished
    with path.open("a") as file:

        def keep(task: int, rate: float) -> None:
            file.write(json.dumps([task, rate]) + "\n")
            file.flush()
            rates[task] = rate

        yield rates, keep


def _read(path: Path, measured: Mapping[str, Any], tasks: int) -> dict[int, float]:
    """Return the stored rates, up to the first incomplete line."""
    if not path.exists():
        return {}
    if not path.is_file():
        raise PeerError(f"{path} is not a file; remove it, or give another --out", ExitCode.INPUT)
    most = HEAD_BYTES + LINE_BYTES * tasks
    with path.open("rb") as file:
        raw = file.read(most + 1)
    head, *lines = raw.decode(errors="replace").splitlines() or [""]
    if len(raw) > most or _json(head) != measured:
        raise PeerError(
            f"{path} has rates of another measurement (other tasks, weights or options); remove the file, or "
            "give another --out",
            ExitCode.INPUT,
        )
    rates: dict[int, float] = {}
    for line in lines:
        match _json(line):
            case [int(task), float(rate)] if type(task) is int and 0 <= task < tasks and 0 <= rate <= 1:
                rates[task] = rate
            case _:
                break
    return rates


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# ------------------------------------------------------------------------------------------------------------------------


__all__ = ["Answering", "AsInRun", "MeasuredRates", "OnProgress", "Sampling", "measure", "survey"]

TOKENIZER = "tokenizer.json"
LONGEST = sys.float_info.min
"""Rate with the longest form in a line."""

OnProgress = Callable[[int, int], None]
"""Function called with the number of measured tasks and the number of all tasks."""

DEFAULT_BOUNDS = SolveRates(RlConfig().min_solve_rate, RlConfig().max_solve_rate)


@dataclass(frozen=True)
class AsInRun:
    """Settings of a run that change how tasks are answered, and the run's bounds on solve rates.

    template, ends: as in `Answering`.
    """

    max_tokens: int = Sampling.max_tokens
    temperature: float = Sampling.temperature
    template: str = ""
    ends: tuple[int, ...] = ()
    bounds: SolveRates = DEFAULT_BOUNDS

    @classmethod
    def of(cls, manifest: RunManifest) -> AsInRun:
        """Return the settings of `manifest`.  Raises `PeerError` for a run without rollouts."""
        if manifest.rl is None:
            raise PeerError("this run learns from text, not from rollouts; give a run with a section [rl]", ExitCode.INPUT)
        template, ends = "plain" if manifest.data.format == "chat" else "raw", tuple[int, ...]()
        if manifest.tokenizer is not None:
            template, ends = manifest.tokenizer.template, tuple(manifest.tokenizer.ends)
        bounds = SolveRates(manifest.rl.min_solve_rate, manifest.rl.max_solve_rate)
        return cls(manifest.rl.max_tokens, manifest.rl.temperature, template, ends, bounds)


@dataclass(frozen=True)
class Answering:
    """Model that answers, and its settings.

    template: layout of a prompt; ends: tokens that end an answer.  If both are empty, the values of a run that begins
    with the model are used.  device: auto, cpu or cuda.
    """

    model: Path
    sampling: Sampling
    template: str = ""
    ends: tuple[int, ...] = ()
    device: str = "auto"


SHOWN_ANSWERS = 3
SHOWN_CHARACTERS = 200


class ShownAnswers:
    """First answers to some tasks, as lines for a person, each with its score and a right answer.

    They show why a model solves nothing: most often its answers do not have the expected form.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lines: dict[int, str] = {}

    def note(self, answer: Answer) -> None:
        """Keep an answer if it is the first to its problem, and the limit is not reached."""
        if answer.problem in self._lines or len(self._lines) >= SHOWN_ANSWERS:
            return
        problem = self._environment.problem(answer.problem)
        prompt, said, right = (
            clean(" ".join(text.split()), SHOWN_CHARACTERS)
            for text in (problem.prompt, answer.turns[-1] if answer.turns else "", self._environment.expected(problem))
        )
        wanted = f"; expected: {right}" if right else ""
        self._lines[answer.problem] = f"answer      »{prompt}« »{said}« scores {answer.score:g}{wanted}"

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines for a person, one for each answer."""
        return tuple(self._lines.values())


@dataclass(frozen=True)
class MeasuredRates:
    """Rates measured, in the order of the tasks.

    digest: hash of the written file as in a run file; may be empty.  answers: lines of `ShownAnswers`.
    """

    rates: tuple[float, ...]
    digest: str = ""
    answers: tuple[str, ...] = ()

    def told(self, bounds: SolveRates) -> list[str]:
        """Describe the rates for a person, and the tasks that a run with these bounds would use."""
        count, inside = len(self.rates), sum(map(bounds.have, self.rates))
        mean, never, always = sum(self.rates) / count, self.rates.count(0), self.rates.count(1)
        lines = [f"solve rate  {mean:.3f} on average; {never} of {count} tasks never solved, {always} always"]
        if self.digest:
            lines.append(f"in a run    {told(inside, count, bounds)}")
        else:
            lines.append(f"in bounds   {inside} of {count}, {bounds.low:g} to {bounds.high:g}; a run also has the others")
        return [*lines, *self.answers]


def measure(source: Path, target: Path, how: Answering, on_progress: OnProgress = lambda done, total: None) -> MeasuredRates:
    """Measure the tasks of a file, or resume measuring, and write the records with their rates to a new file.

    Measured rates survive an interruption, in a file beside the new one.  Raises `PeerError`.
    """
    _check_target(source, target)
    with _naming_errors():
        data = read_file(str(named_file(source)))
        environment, records = _tasks(source, data)
        _rated(records, [LONGEST] * len(records), how.sampling.samples)  # fails before hours of measuring
        rater, of = _rater(how)
        shown = ShownAnswers(environment)
        path = target.with_name(target.name + SUFFIX)
        with kept_rates(path, {"tasks": digest_of(data), **of}, environment.size) as (kept, keep):
            on_progress(len(kept), environment.size)
            missing = [task for task in range(environment.size) if task not in kept]
            for task, rate in rater.rates(environment, missing, shown.note) if missing else ():
                keep(task, rate)
                on_progress(len(kept), environment.size)
        rates = tuple(kept[task] for task in range(environment.size))
        written = _rated(records, rates, how.sampling.samples)
        _write(target, written)
        path.unlink(missing_ok=True)
    return MeasuredRates(rates, digest_of(written), shown.lines)


def _check_target(source: Path, target: Path) -> None:
    if target.resolve() == source.resolve():
        raise PeerError("the result goes to a new file; give another --out", ExitCode.INPUT)
    if os.path.lexists(target):  # also for a dangling link
        raise PeerError(f"{target} exists; remove it, or give another --out", ExitCode.INPUT)
    if not target.parent.is_dir():
        raise PeerError(f"there is no folder {target.parent}; make it, or give another --out", ExitCode.INPUT)


def survey(name: str, count: int, how: Answering, on_progress: OnProgress = lambda done, total: None) -> MeasuredRates:
    """Measure `count` problems, spread over an environment with a name as in a run file.  Raises `PeerError`."""
    with _naming_errors():
        if read_name(name)[0] == FILE or files_of(name):
            raise ValueError(
                "an environment with a file of tasks is not sampled, because all tasks of a file are measured; name the file"
            )
        environment = open_named(name)
        rater, _ = _rater(how)
        count = min(count, environment.size)
        problems = [number * environment.size // count for number in range(count)]
        on_progress(0, count)
        rates: dict[int, float] = {}
        shown = ShownAnswers(environment)
        for problem, rate in rater.rates(environment, problems, shown.note):
            rates[problem] = rate
            on_progress(len(rates), count)
    return MeasuredRates(tuple(rates[problem] for problem in problems), answers=shown.lines)


def _tasks(source: Path, data: bytes) -> tuple[RecordedTasks, list[dict[str, Any]]]:
    """Return the tasks, and the records from which they were read.  Raises ValueError with the line's number."""
    if data.startswith(ZSTANDARD):
        raise ValueError(f"{source} is compressed; unpack it first: zstd -d {source.name}")
    try:
        tasks = read_tasks(io.BytesIO(data))
    except ValueError as error:
        raise ValueError(f"{source}: {error}; docs/guides/environments.md describes the format of a line") from error
    lines = (line.removeprefix(BYTE_ORDER_MARK) for line in io.BytesIO(data))
    records = [json.loads(line) for line in lines if line.strip()]
    for record, task in zip(records, tasks, strict=True):
        record["problem_id"] = task.problem_id  # the written file has no blank lines, so its line numbers differ
    return RecordedTasks(tasks, digest_of(data)), records


def _rater(how: Answering) -> tuple[Rater, dict[str, Any]]:
    """Return the rater, and the facts on which its rates depend."""
    sampling = how.sampling
    if not 0 < sampling.temperature <= 1000:
        raise PeerError("a temperature must be above 0 and at most 1000; change --temperature", ExitCode.USAGE)
    if how.device == "cuda" and not torch.cuda.is_available():
        raise PeerError("torch cannot use a GPU on this computer; leave --device out", ExitCode.RESOURCES)
    folder = WeightsFolder(how.model)
    tokenizer, read = _tokenizer(how, folder)
    check_memory(BF16_BYTES * folder.config.parameters, "cpu")
    weights = rating.weights_in(folder)
    of = {"model": rating.digest_of(weights), **read, **asdict(sampling)}
    del of["slots"]  # changes only the speed
    return Rater(folder.config, weights, tokenizer, sampling, pick_device(how.device)), of


def _tokenizer(how: Answering, folder: WeightsFolder) -> tuple[TemplatedTokenizer, dict[str, Any]]:
    """Return the tokenizer of a run that begins with the folder, and the tokenizer's facts on which rates depend."""
    path = folder.folder / TOKENIZER
    if os.path.lexists(path):
        said = {"template": how.template, "ends": [*how.ends]}
        facts = tokenizer_facts(path, {name: value for name, value in said.items() if value})
        read = {
            "tokenizer": digest_of(read_outside(path, MAX_TOKENIZER_BYTES)),
            "template": facts["template"],
            "ends": [*facts["ends"]],
        }
        return TemplatedTokenizer(TokenizerFile(path, facts["ends"]), facts["template"]), read
    check_readable(folder.folder)
    if folder.config.vocab != ByteTokenizer.vocab:
        raise PeerError(f"{folder.folder} has no {TOKENIZER}; copy the model's own one there", ExitCode.INPUT)
    template = how.template or "raw"
    return TemplatedTokenizer(ByteTokenizer(), template), {"template": template}


def _rated(records: Sequence[Mapping[str, Any]], rates: Sequence[float], samples: int) -> bytes:
    """Return the file with rates.  Raises ValueError for records that a reader of tasks would then refuse."""
    lines: list[bytes] = []
    for record, rate in zip(records, rates, strict=True):
        rated = {**record, "solve_rate": rate, "samples": samples}
        try:
            lines.append(json.dumps(rated, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the task {record['problem_id']!r:.80} cannot be written back: {error}") from error
        if len(lines[-1]) > MAX_LINE_BYTES:
            raise ValueError(f"the task {record['problem_id']!r:.80} has no room for its solve_rate; shorten the task")
    return b"".join(lines)


def _write(target: Path, data: bytes) -> None:
    try:
        write_atomically(target, data, replace=False)
    except FileExistsError as error:
        raise PeerError(f"{target} exists; remove it, and run the command again", ExitCode.INPUT) from error


@contextmanager
def _naming_errors() -> Iterator[None]:
    try:
        with told_as(ExitCode.RESOURCES, SandboxUnavailable), told_as(ExitCode.INPUT, ValueError):
            yield
    except (RuntimeError, MemoryError) as error:  # torch has no error of its own for the computer's memory
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        raise PeerError(
            "the device lacks the memory for so many answers at once; give a smaller --at-once or --max-tokens",
            ExitCode.RESOURCES,
        ) from error
