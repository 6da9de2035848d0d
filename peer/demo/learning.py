"""Demo of learning from rollouts: the reward rises, and cheats are set aside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from peer.demo.cast import REPORT, DemoMember, DemoPart
from peer.errors import ExitCode, PeerError
from peer.formatting import sparkline
from protocol.blobs.store import BlobStore
from protocol.chain.stored_run import NotStored, StoredRun
from protocol.disk import Disk
from protocol.events import events as ev
from protocol.formatting import clean, duration, number, visible
from protocol.run.manifest import RunManifest, SignedManifest
from protocol.sync.fetchers import paths_of
from protocol.wire.presence import Role
from trainer.config import TrainingConfig
from trainer.device import pick_device
from trainer.environments.registry import open_named
from trainer.environments.sandbox import SandboxUnavailable
from trainer.models.llama.initial import initial_parameters
from trainer.parameters import load
from trainer.reading import environment_of, tokenizer_of
from trainer.rl.groups import TargetedEnvironment
from trainer.rl.rating import Rater, Sampling

# ------------------------------------------------------------------------------------------------------------------------
# Comparison of a demo's first state with its last one, over the same problems.
#
# The rewards of a version's rollouts cannot show a small gain: each version has its own problems, so two versions differ
# by chance alone.  Here both states answer the same problems with the same noise, so only the mean of the
# differences is uncertain.


@dataclass(frozen=True)
class MeasuredState:
    """Answers of one state.  rounds: rounds before the state.  scores: mean score by problem.  rollouts: number of answers.

    prompt, answer, score: an answer to show; texts of a model or a stranger, with any characters, and 0 to 1.
    """

    rounds: int
    scores: tuple[float, ...]
    rollouts: int
    prompt: str
    answer: str
    score: float

    @property
    def mean(self) -> float:
        """Mean score, 0 to 1."""
        return fmean(self.scores)


@dataclass(frozen=True)
class Comparison:
    """Comparison of two states that have answered the same problems."""

    start: MeasuredState
    end: MeasuredState

    @property
    def gain(self) -> float:
        """Mean score at the end, minus the mean score at the start."""
        return self.end.mean - self.start.mean

    @property
    def error(self) -> float:
        """Standard error of the gain: of the mean, over problems, of the differences; 0 for a single problem."""
        gains = [end - start for start, end in zip(self.start.scores, self.end.scores, strict=True)]
        return stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0


# ------------------------------------------------------------------------------------------------------------------------


MOST_VERSIONS = 40
"""Most versions: the demo then ends even if a cheat has not been detected."""
SHOWN = 80
"""Characters shown of a prompt and of an answer."""
CURVE_WIDTH = 40
A_LINE = 4
"""Versions whose counts share a line."""


@dataclass(frozen=True)
class _LearnedVersion:
    """Rollouts behind a version.

    reward: their mean, 0 to 1.  behaviour_kl: divergence of the trained policy from the one that made them, nats a token;
    None if it is not known.
    """

    reward: float
    rollouts: int
    behaviour_kl: float | None


class Learning:
    """Aim of a cast with rollout peers and validators, as `Training` is of trainers; only the trainer's events count.

    versions: number of versions that learn from rollouts.  While a cheat is not set aside yet, more follow, up to
    `MOST_VERSIONS`.
    """

    def __init__(self, cast: Sequence[DemoPart], versions: int, manifest: RunManifest) -> None:
        assert manifest.rl is not None, "no run with rollouts"
        self._cast, self._versions = {part.name: part for part in cast}, versions
        self._environment, self._warm = manifest.rl.environment, manifest.rl.warm_rounds
        self._task = solved_task(self._environment)
        self._peers: dict[str, str] = {}
        self._learned: dict[int, _LearnedVersion] = {}
        """Rollouts behind a round's contribution, by round."""
        self._versions_made: dict[int, _LearnedVersion] = {}
        """Rollouts behind each committed version, by round."""
        self._comparison: Comparison | None = None
        self._committed = 0
        self._accepted, self._rejected = set[str](), set[str]()
        self._made: dict[str, int] = dict.fromkeys(self._cast, 0)
        """Number of batches that each peer generated or judged."""
        self._aside: dict[tuple[str, Role], str] = {}
        self.news: list[str] = []
        self.stop_after: int | None = None

    @property
    def rewards(self) -> list[float]:
        """Mean reward of each version's rollouts so far, 0 to 1."""
        return [self._versions_made[round].reward for round in sorted(self._versions_made)]

    @property
    def has_warmed_up(self) -> bool:
        """True if the next round learns from rollouts."""
        return self._committed >= self._warm

    def conclude(self, comparison: Comparison) -> None:
        """Store the comparison of the states at the start and at the end."""
        self._comparison = comparison

    def apply(self, member: DemoMember, event: ev.Event) -> None:
        """See `Training.apply`."""
        self._peers[member.peer] = member.name
        if self._is_over:
            return
        match event:
            case ev.RolloutsGenerated():
                self._made[member.name] += 1
            case ev.BatchJudged(validator=validator) if validator == member.peer and member.part.role is Role.VALIDATOR:
                self._made[member.name] += 1
        if member.part.role is not Role.TRAINER:
            return
        match event:
            case ev.RolloutsUsed(round, rollouts=int(rollouts), reward=float(reward), behaviour_kl=kl):
                self._learned[round] = _LearnedVersion(reward, rollouts, kl)
            case ev.RoundCommitted(round):
                self._commit(round)
            case ev.BatchDecided(root=root, verdict="accepted"):
                self._accepted.add(root)
            case ev.BatchDecided(root=root, verdict="rejected"):
                self._rejected.add(root)
            case ev.RolloutPeerSetAside(peer, reason) | ev.ValidatorSetAside(peer, reason):
                role = Role.ROLLOUT if isinstance(event, ev.RolloutPeerSetAside) else Role.VALIDATOR
                if (peer, role) not in self._aside:
                    self._aside[peer, role] = reason
                    self.news.append(f"{self._name(peer)} is set aside: {clean(reason, 120)}")

    def _commit(self, round: int) -> None:
        self._committed = max(self._committed, round + 1)
        if round in self._learned and round not in self._versions_made:
            made = self._versions_made[round] = self._learned[round]
            told = [
                f"reward {number(made.reward)} ({made.rollouts} rollouts)",
                *_distance(made.behaviour_kl),
                self._batches(),
            ]
            self.news.append(f"{self._version_words()}: {', '.join(told)}")
        elif round < self._warm:
            self.news.append(f"warm-up round {round + 1} of {self._warm}, on solved examples")

    def has_arrived(self, name: str) -> bool:
        """See `Training.has_arrived`."""
        return self._is_over

    @property
    def _is_over(self) -> bool:
        versions, wanted = len(self._versions_made), self._versions
        return (versions >= wanted and not self._undetected()) or versions >= max(MOST_VERSIONS, wanted)

    # -- reports ------------------------------------------------------------------------------------------------------

    def title(self) -> str:
        """See `Training.title`."""
        cheats = [f"{part.name} cheats" for part in self._cast.values() if part.cheat is not None]
        task = f" (as {self._task})" if self._task else ""
        who = f"{len(self._cast)} peers learn '{self._environment}'{task} from rollouts that others check"
        return ", ".join([who, *cheats])

    def headline(self, seconds: float, *, unicode: bool) -> str:
        """See `Training.headline`."""
        if not self._versions_made:
            return f"warm-up, {self._committed} of {self._warm} rounds, {duration(seconds)}"
        curve = sparkline(self.rewards, CURVE_WIDTH, unicode=unicode)
        return f"{self._version_words()}, reward {number(self.rewards[-1])} {curve} {self._batches()}, {duration(seconds)}"

    def _version_words(self) -> str:
        """Return the number of the newest version, beside the planned number of versions unless it is larger."""
        made = len(self._versions_made)
        return f"version {made} of {self._versions}" if made <= self._versions else f"version {made}"

    def remark(self, name: str) -> str:
        """See `Training.remark`."""
        part = self._cast[name]
        aside = [reason for (peer, _), reason in self._aside.items() if self._peers.get(peer) == name]
        if aside:
            return f"SET ASIDE: {aside[0]}"
        done = {Role.ROLLOUT: "made", Role.VALIDATOR: "judged"}.get(part.role)
        return f"{self._made[name]} batches {done}" if done else ""

    def lines(self, seconds: float, *, unicode: bool) -> list[str]:
        """See `Training.lines`."""
        curve = sparkline(self.rewards, CURVE_WIDTH, unicode=unicode)
        words = [f"{each['version']}: {number(each['reward'], 2)} ({each['rollouts']})" for each in self._by_version()]
        return [
            f"{len(self._versions_made)} versions out of rollouts in {duration(seconds)}",
            *(self._compared(self._comparison) if self._comparison is not None else []),
            f"by version      reward (of so many rollouts, with problems of their own)  {curve}",
            *(f"                {', '.join(words[start : start + A_LINE])}" for start in range(0, len(words), A_LINE)),
            *(f"off policy      {each}, mean over the versions" for each in _distance(self._mean_kl())),
            f"batches         {self._batches()}",
            *(f"set aside       {each['name']}: {clean(each['reason'], 120)}" for each in self._ejected()),
        ]

    def _compared(self, compared: Comparison) -> list[str]:
        def told(measured: MeasuredState) -> str:
            return f"{number(measured.mean)} at version {self._version(measured)} ({measured.rollouts} rollouts)"

        def sample(state: MeasuredState) -> str:
            verdict = {0.0: "wrong", 1.0: "right"}.get(state.score, f"score {state.score:.2f}")
            return f"{_shown(state.prompt)} -> {_shown(state.answer) or 'nothing'}: {verdict}"

        start, end = compared.start, compared.end
        change = f"{compared.gain:+.3f} ± {compared.error:.3f} on the same {len(end.scores)} problems"
        not_risen = "" if compared.gain > 0 else ": NOT HIGHER"
        return [
            f"reward          {told(start)} -> {told(end)}, {change}{not_risen}",
            f"at the start    {sample(start)}",
            f"at the end      {sample(end)}",
        ]

    def _version(self, measured: MeasuredState) -> int:
        """Return the number of rounds that learned from rollouts; 0 after the warm-up."""
        return max(0, measured.rounds - self._warm)

    def _by_version(self) -> list[dict[str, Any]]:
        made = self._versions_made
        return [{"version": place, **asdict(made[round])} for place, round in enumerate(sorted(made), start=1)]

    def fields(self, seconds: float) -> dict[str, Any]:
        """See `Training.fields`."""
        compared = self._comparison
        return {
            "versions": len(self._versions_made),
            "seconds": round(seconds, 1),
            "start": self._measured_fields(compared.start) if compared is not None else None,
            "end": self._measured_fields(compared.end) if compared is not None else None,
            "gain": compared.gain if compared is not None else None,
            "gain_error": compared.error if compared is not None else None,
            "by_version": self._by_version(),
            "accepted": len(self._accepted),
            "rejected": len(self._rejected),
            "ejected": self._ejected(),
        }

    def _measured_fields(self, measured: MeasuredState) -> dict[str, Any]:
        return {
            "version": self._version(measured),
            "reward": measured.mean,
            "problems": len(measured.scores),
            "rollouts": measured.rollouts,
            "sample": {
                "prompt": _shown(measured.prompt),
                "answer": _shown(measured.answer),
                "score": measured.score,
            },
        }

    def fault(self) -> str:
        """See `Training.fault`."""
        honest = [each["name"] for each in self._ejected() if not self._is_cheat(each["name"])]
        if honest:
            return f"{', '.join(honest)} was set aside and is honest, {REPORT}"
        undetected = self._undetected()
        cheats, versions = ", ".join(undetected), len(self._versions_made)
        return f"{cheats} cheats and was not found out in {versions} versions, {REPORT}" if undetected else ""

    # -- parts --------------------------------------------------------------------------------------------------------

    def _mean_kl(self) -> float | None:
        known = [made.behaviour_kl for made in self._versions_made.values() if made.behaviour_kl is not None]
        return fmean(known) if known else None

    def _ejected(self) -> list[dict[str, str]]:
        return [
            {"peer": peer, "name": self._name(peer), "role": role.value, "reason": reason}
            for (peer, role), reason in self._aside.items()
        ]

    def _undetected(self) -> list[str]:
        found = {self._name(peer) for peer, _ in self._aside}
        return [name for name in self._cast if self._is_cheat(name) and name not in found]

    def _is_cheat(self, name: str) -> bool:
        return name in self._cast and self._cast[name].cheat is not None

    def _name(self, peer: str) -> str:
        return self._peers.get(peer, peer)

    def _batches(self) -> str:
        return f"{len(self._accepted)} accepted, {len(self._rejected)} rejected"


def solved_task(environment: str) -> str:
    """Return a problem of an environment with its solution, to show; empty if it needs files or knows no solution."""
    try:
        opened = open_named(environment)
        problem = opened.problem(opened.size // 2)
        return f"{_shown(problem.prompt)} -> {_shown(opened.solution(problem)[0])}"
    except ValueError:
        return ""


def _shown(text: str) -> str:
    """Return the beginning of a text by a model or a stranger, in one line, with escapes for unprintable characters."""
    line = visible(text[: SHOWN + 1].strip("\n\0")).replace("\n", "\\n")
    return line if len(line) <= SHOWN else line[:SHOWN] + "..."


# ------------------------------------------------------------------------------------------------------------------------
# Examination of a demo's states after all peers have left: each state answers the same problems in this process.


F32 = npt.NDArray[np.float32]

PROBLEMS, SAMPLES = 256, 2
"""Number of problems that both states answer, and number of a state's answers to each problem."""


class Examiner:
    """Examiner that lets states of a run answer the same problems, which are spread over the run's environment.

    files: paths of the run's files, by name.  Raises ValueError and SandboxUnavailable for an environment that cannot be
    opened here.
    """

    def __init__(self, manifest: RunManifest, files: Mapping[str, Path], problems: int = PROBLEMS) -> None:
        assert manifest.rl is not None, "no run with rollouts"
        sections = {**manifest.trainer_sections(), "files": {name: str(path) for name, path in files.items()}}
        self._config = TrainingConfig.from_sections(sections)
        rl = self._config.rl
        assert rl is not None
        self._environment = TargetedEnvironment(environment_of(self._config), rl.length_targets, self._config.seed)
        count = min(problems, self._environment.size)
        self._problems: Sequence[int] = [number * self._environment.size // count for number in range(count)]
        self._sampling = Sampling(SAMPLES, rl.max_tokens, rl.temperature)

    def measure(self, rounds: int, theta: F32) -> MeasuredState:
        """Let the model answer with the parameters `theta` (n), the state after `rounds` rounds.  Raises SandboxUnavailable.

        The answer to show is the first to a problem of median length.
        """
        weights = torch.empty(len(theta), dtype=torch.bfloat16)
        load(theta, weights)
        rater = Rater(self._config.model, weights, tokenizer_of(self._config), self._sampling, pick_device("auto"))
        answers = {(each.problem, each.copy): each for each in rater.answers(self._environment, self._problems)}
        scores = [fmean(answers[problem, copy].score for copy in range(SAMPLES)) for problem in self._problems]
        prompts = {problem: self._environment.problem(problem).prompt for problem in self._problems}
        shown = sorted(self._problems, key=lambda problem: (len(prompts[problem]), problem))[len(self._problems) // 2]
        answer = answers[shown, 0]
        return MeasuredState(rounds, tuple(scores), len(answers), prompts[shown], answer.turns[-1], answer.score)


def newest_state(signed: SignedManifest, folder: Path) -> tuple[int, F32]:
    """Return the newest state in the folder of a run, whose peer may be running: its rounds and parameters (n).

    Raises `NotStored`.
    """
    manifest = signed.manifest
    stored, seeded = StoredRun(signed, folder).newest(), None
    if stored.start is None:
        seeded = np.empty(manifest.parameters, np.float32)
        initial_parameters(manifest.model, manifest.seed, seeded, manifest.adapter)
    return stored.rounds, np.concatenate([*stored.parameters(seeded)])


class StateExamination:
    """Comparison of the state after the warm-up, which is kept until the demo is over, with the final state.

    folder: the run's folder in the trainer's data directory.  aim: detects the end of the warm-up, and stores the result.
    """

    def __init__(self, signed: SignedManifest, folder: Path, aim: Learning) -> None:
        self._signed, self._folder, self._aim = signed, folder, aim
        self._start: tuple[int, F32] | None = None

    def look(self) -> None:
        """Keep the newest state if it is the first one after the warm-up; call this often."""
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
            self._aim.conclude(Comparison(examiner.measure(*self._start), examiner.measure(*end)))
        except (NotStored, ValueError) as error:
            raise PeerError(
                f"the states at the start and at the end could not be compared: {error}; start the demo again"
            ) from error
        except SandboxUnavailable as error:
            raise PeerError(str(error), ExitCode.RESOURCES) from error


def _distance(kl: float | None) -> list[str]:
    """Return the divergence from the policy that made the rollouts in words, if it is known."""
    return [] if kl is None else [f"KL {kl:.4f} to the policy that made them"]
