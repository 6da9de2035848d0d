"""Examination of a demo's states after all peers have left: each answers the same problems in the demo's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import torch

from peer.demo.learning import Comparison, Learning, MeasuredState, SampleAnswer
from peer.errors import ExitCode, PeerError
from protocol.blobs.store import BlobStore
from protocol.chain.stored_run import NotStored, StoredRun, StoredState
from protocol.disk import Disk
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.sync.run_files import paths_of
from trainer.config import TrainingConfig
from trainer.environments.sandbox import SandboxUnavailable
from trainer.evaluation import load
from trainer.models.llama.initial import initial_parameters
from trainer.reading import environment_of, tokenizer_of
from trainer.rl.rating import Rater, Sampling
from trainer.rl.targets import Targeted
from trainer.worker import pick_device

F32 = npt.NDArray[np.float32]

PROBLEMS, SAMPLES = 256, 2
"""Problems that both states answer, and the number of answers of a state to each."""


class Examiner:
    """Examiner that lets states of a run answer problems spread over its environment, the same for each state.

    files: paths of the run's files, by name.  Raises ValueError and SandboxUnavailable for an environment that cannot be
    opened here.
    """

    def __init__(self, manifest: RunManifest, files: Mapping[str, Path], problems: int = PROBLEMS) -> None:
        assert manifest.rl is not None, "no run with rollouts"
        sections = {**manifest.trainer_sections(), "files": {name: str(path) for name, path in files.items()}}
        self._config = TrainingConfig.from_sections(sections)
        rl = self._config.rl
        assert rl is not None
        self._environment = Targeted(environment_of(self._config), rl.length_targets, self._config.seed)
        count = min(problems, self._environment.size)
        self._problems: Sequence[int] = [number * self._environment.size // count for number in range(count)]
        self._sampling = Sampling(SAMPLES, rl.max_tokens, rl.temperature)

    def measure(self, rounds: int, theta: F32) -> MeasuredState:
        """Let the parameters `theta` (n), the state after `rounds` rounds, answer.  Raises SandboxUnavailable.

        The sample is the first answer to a problem of median length.
        """
        weights = torch.empty(len(theta), dtype=torch.bfloat16)
        load(theta, weights)
        rater = Rater(self._config.model, weights, tokenizer_of(self._config), self._sampling, pick_device("auto"))
        answers = {(each.problem, each.copy): each for each in rater.answers(self._environment, self._problems)}
        scores = [fmean(answers[problem, copy].score for copy in range(SAMPLES)) for problem in self._problems]
        prompts = {problem: self._environment.problem(problem).prompt for problem in self._problems}
        shown = sorted(self._problems, key=lambda problem: (len(prompts[problem]), problem))[len(self._problems) // 2]
        answer = answers[shown, 0]
        return MeasuredState(
            rounds, tuple(scores), len(answers), SampleAnswer(prompts[shown], answer.turns[-1], answer.score)
        )


@dataclass(frozen=True)
class State:
    """Parameters (n), the state after `rounds` rounds."""

    rounds: int
    theta: F32


def newest_state(signed: SignedManifest, folder: Path) -> State:
    """Return the newest state in the folder of a run, whether its peer runs or not.  Raises `NotStored`."""
    manifest = signed.manifest
    stored = StoredRun(signed, folder).newest()
    theta = np.empty(manifest.parameters, np.float32)
    at = 0
    for chunk in stored.parameters(_seeded(manifest, stored)):
        theta[at : at + len(chunk)] = chunk
        at += len(chunk)
    return State(stored.rounds, theta)


def _seeded(manifest: RunManifest, stored: StoredState) -> F32 | None:
    if stored.start is not None:
        return None
    values = np.empty(manifest.parameters, np.float32)
    initial_parameters(TrainingConfig.from_sections(manifest.trainer_sections()).model, manifest.seed, values)
    return values


class StateExamination:
    """Comparison of the state after the warm-up, kept until the demo is over, with the final state.

    folder: of the run, at the trainer.  aim: knows the end of the warm-up, and takes the result.
    """

    def __init__(self, signed: SignedManifest, folder: Path, aim: Learning) -> None:
        self._signed, self._folder, self._aim = signed, folder, aim
        self._start: State | None = None

    def look(self) -> None:
        """Keep the newest state if it is the first one after the warm-up; call often."""
        if self._start is None and self._aim.has_warmed_up:
            try:
                self._start = newest_state(self._signed, self._folder)
            except (NotStored, FileNotFoundError):
                return  # the peer is writing it now

    def conclude(self) -> None:
        """Let both states answer, and hand the comparison to the aim.  Raises `PeerError`."""
        try:
            if self._start is None:
                raise NotStored("the trainer has written no state down after the warm-up")
            end = newest_state(self._signed, self._folder)
            files = paths_of(self._signed.manifest, BlobStore(Disk(), self._folder / "files"))
            examiner = Examiner(self._signed.manifest, files)
            start = examiner.measure(self._start.rounds, self._start.theta)
            self._aim.conclude(Comparison(start, examiner.measure(end.rounds, end.theta)))
        except (NotStored, ValueError) as error:
            raise PeerError(f"the states at the start and at the end could not be compared: {error}") from error
        except SandboxUnavailable as error:
            raise PeerError(str(error), ExitCode.RESOURCES) from error
