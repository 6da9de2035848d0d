"""Pushes of a run's states, each exported to this disk, committed to a repository and tagged.

The repository's own `manyhands.json` says which state it has, so a state is pushed once, however often the process is
killed.  An export stays on disk until the repository has it, so a state that was begun is pushed.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from peer.control.history import RunHistory
from peer.errors import ExitCode, PeerError
from peer.hubs.card import CARD, MARK, CardFacts, model_card
from peer.hubs.repository import Head, HubBusy, HubRepository
from peer.paths import make_private, run_dir
from peer.weights.folders import ORIGIN, ExportedState, export
from protocol.bounds import Backoff
from protocol.formatting import duration, many, size
from protocol.run.manifest import SignedManifest

FOLDER = "push"
"""Folder in a run's folder with an export for each repository, until it is pushed."""
LOCK = "lock"
CONFIG, WEIGHTS = "config.json", (".safetensors", ".safetensors.index.json")
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 600.0
"""Bounds of the time between two attempts, unless the hub asks for another; each wait is about twice the last."""
MOST_ROUNDS = 1 << 53
LOOK_S = 5.0
"""Seconds between two looks for a new state."""


Tell = Callable[[str], None]
"""Function that takes a sentence for the person."""


@dataclass(frozen=True)
class PushOptions:
    """Options of pushes.  every: number of rounds between pushes; None for one push.

    attempts: largest number of attempts of a push; None for no limit.
    """

    dtype: str
    every: int | None
    attempts: int | None


class Pusher:
    """Pusher of one run's states to one repository.  tell: takes sentences for the person.  Blocking; raises `PeerError`."""

    def __init__(
        self,
        signed: SignedManifest,
        data: Path,
        repository: HubRepository,
        options: PushOptions,
        tell: Tell,
    ) -> None:
        self._signed, self._data, self._repository, self._options, self._tell = signed, data, repository, options, tell
        self._place = run_dir(data, signed.run) / FOLDER / repository.name.replace("/", "--")
        self._model = self._place / options.dtype
        self._history = RunHistory(signed, run_dir(data, signed.run))
        self._told = ""

    def run(self) -> None:
        """Push the newest state, and with `every` each later state that is due, until the final one is pushed."""
        with self._alone():
            pushed = self._patiently(self._tag_newest)
            begun = ExportedState.of_folder(self._model) if self._model.is_dir() else None
            if begun is not None and begun.rounds > pushed:
                pushed = self._patiently(self._push)
            shutil.rmtree(self._model, ignore_errors=True)
            while True:
                self._history.read()
                rounds, is_over = len(self._history.rounds), self._history.progress.is_over
                if self._options.every is None and not rounds:
                    raise PeerError(
                        "no round of the run is on this disk yet; push it later, or with --every", ExitCode.INPUT
                    )
                every = self._options.every
                is_due = every is None or is_over or rounds // every > pushed // every
                if rounds > pushed and is_due and self._exported():
                    pushed = self._patiently(self._push)
                    continue
                if every is None or (is_over and pushed >= rounds):
                    self._tell(f"{self._repository.name} has the state after {many(pushed, 'round')}")
                    return
                time.sleep(LOOK_S)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the folder against other processes, and remove the files that killed ones left there."""
        make_private(self._place)
        try:
            with FileLock(self._place / LOCK, timeout=0):
                for path in {*self._place.iterdir()} - {self._place / LOCK, self._model}:
                    shutil.rmtree(path)
                yield
        except Timeout as error:
            raise PeerError(
                f"another process pushes this run to {self._repository.name}; end it first", ExitCode.ALREADY_RUNNING
            ) from error

    def _exported(self) -> bool:
        """Export the newest state; return False if it is not available yet."""
        try:
            export(self._signed, self._data, self._model, self._options.dtype, None)
        except PeerError as error:
            if self._options.every is None or error.exit_code is not ExitCode.INPUT:
                raise
            self._tell_once(f"{error.text}; the export is tried again")  # its last result may be on its way
            return False
        return True

    def _patiently(self, attempt: Callable[[], int]) -> int:
        """Return the result of `attempt`; repeat it while the hub is busy or cannot be reached."""
        backoff, attempts = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S), 0
        while True:
            try:
                return attempt()
            except HubBusy as error:
                attempts += 1
                if attempts == self._options.attempts:
                    raise PeerError(f"{error.text}; run the command again later; it continues where it stopped") from error
                self._tell_once(f"{error.text}; the push is tried again")
                wait_s = backoff.failed() * random.uniform(0.75, 1.25)
                time.sleep(wait_s if error.wait_s is None else error.wait_s)

    def _tell_once(self, text: str) -> None:
        """Report the reason for a delay, unless it was the last one reported."""
        if text != self._told:
            self._tell(text)
        self._told = text

    def _tag_newest(self) -> int:
        """Give the state in the repository its tag, and return its rounds; 0 without one."""
        head = self._repository.head()
        state = self._state(head)
        if state is None:
            return 0
        self._repository.tag(f"round-{state.rounds}", head.commit)
        return state.rounds

    def _push(self) -> int:
        """Commit and tag the exported state unless the repository has it or a later one; return the rounds there."""
        state = ExportedState.of_folder(self._model)
        assert state is not None
        head = self._repository.head()
        there = self._state(head)
        if there is None or there.rounds < state.rounds:
            files: dict[str, Path | bytes] = {path.name: path for path in sorted(self._model.iterdir())}
            total = sum(path.stat().st_size for path in self._model.iterdir())
            if CARD not in head.files or MARK.encode() in self._repository.read(CARD, head.commit):
                rounds, held_out = self._history.rounds, self._history.held_out.get(state.rounds)
                tokens = rounds[state.rounds - 1].tokens if 0 < state.rounds <= len(rounds) else 0
                facts = CardFacts(state, tokens, held_out, self._options.dtype, "tokenizer.json" in files)
                files[CARD] = model_card(self._signed.manifest, facts, self._repository.name)
            gone = frozenset(path for path in head.files if _is_weights(path)) - files.keys()
            begun = time.monotonic()
            commit = self._repository.commit(head.commit, f"State after {many(state.rounds, 'round')}", files, gone)
            self._repository.tag(f"round-{state.rounds}", commit)
            took = duration(time.monotonic() - begun)
            self._tell(
                f"pushed the state after {many(state.rounds, 'round')} to {self._repository.name} ({size(total)}, {took})"
            )
        else:
            self._repository.tag(f"round-{there.rounds}", head.commit)
        shutil.rmtree(self._model)
        self._told = ""
        return max(state.rounds, there.rounds if there is not None else 0)

    def _state(self, head: Head) -> ExportedState | None:
        """Return the state in the repository; None if it is new.  Raises `PeerError` if something else is in it."""
        name = self._repository.name
        if ORIGIN not in head.files:
            if any(path == CONFIG or _is_weights(path) for path in head.files):
                raise PeerError(f"{name} holds a model that no run pushed; name another repository", ExitCode.INPUT)
            return None
        with suppress(ValueError, TypeError, LookupError, OverflowError, RecursionError):
            fields = json.loads(self._repository.read(ORIGIN, head.commit))
            state = ExportedState(str(fields["run"]), "", int(fields["rounds"]), bool(fields["is_final"]))
            if state.run == self._signed.run.hex() and 0 <= state.rounds < MOST_ROUNDS:
                return state
        raise PeerError(f"{name} has the model of another run; name another repository", ExitCode.INPUT)


def _is_weights(path: str) -> bool:
    return path.endswith(WEIGHTS) and "/" not in path
