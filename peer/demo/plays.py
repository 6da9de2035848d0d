"""A demo's play: its run, its cast, and its aim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from peer.demo.cast import Aim, Cheat, DemoPart, only_trainers, with_rollouts
from peer.demo.learning import LEAST_VERSIONS, Learning
from peer.demo.training import Training
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import start_of
from peer.weights.brought import Brought
from protocol.run.manifest import RunManifest, SignedManifest, demo_manifest, sign
from protocol.run.run_file import load_run_file, parse_run_file
from protocol.run.sections import Unit
from protocol.wire.identity import Identity

LEARNING_RUN = "learning.toml"
"""The built-in run with rollouts, a run file beside this module."""
LEAST_MINUTES = 3
"""Upper bound on the minutes that `LEAST_VERSIONS` of the built-in run take on two idle cores."""


@dataclass(frozen=True)
class Play:
    """Play of a demo.  begins_with: the run file's weights, tokenizer or chats, if any."""

    signed: SignedManifest
    begins_with: Brought | None
    cast: tuple[DemoPart, ...]
    aim: Aim


def training_play(peers: int, rounds: int, run_file: Path | None) -> Play:
    """Return a play with the built-in recipe or a run file's; all trainers wait for each other before the first round."""
    organiser, start = Identity.generate(), _start(run_file)
    manifest = demo_manifest().manifest if run_file is None else load_run_file(run_file, organiser.peer_id, start)
    most = max(peers, manifest.rounds.max_members)
    rounds_section = manifest.rounds.model_copy(update={"min_members": peers, "max_members": most})
    signed = _private(organiser, manifest, {"rounds": rounds_section.model_dump()})
    cast = only_trainers(peers)
    return Play(signed, start, cast, Training(cast, min(rounds, _rounds_of(signed.manifest, peers)), signed.manifest))


def learning_play(versions: int | None, cheat: Cheat | None, run_file: Path | None) -> Play:
    """Return a play with the built-in run with rollouts or a run file's.

    versions: None for the number that the built-in run needs for its reward to rise.  Raises `PeerError`, also if the
    built-in run is given fewer.
    """
    if run_file is None and versions is not None and versions < LEAST_VERSIONS:
        raise PeerError(
            f"in {versions} rounds the reward may not rise; give --rounds {LEAST_VERSIONS} or more, which takes about "
            f"{LEAST_MINUTES} minutes on two idle cores, or leave --rounds out",
            ExitCode.USAGE,
        )
    versions = versions or LEAST_VERSIONS
    organiser, start = Identity.generate(), _start(run_file)
    manifest = learning_manifest(organiser) if run_file is None else load_run_file(run_file, organiser.peer_id, start)
    if manifest.rl is None:
        raise PeerError(f"{run_file} has no section [rl], which --rl needs; add one, or leave --rl out", ExitCode.INPUT)
    signed, cast = _private(organiser, manifest, {}), with_rollouts(cheat)
    return Play(signed, start, cast, Learning(cast, versions, signed.manifest))


def learning_manifest(organiser: Identity) -> RunManifest:
    """Return the manifest of the built-in run with rollouts."""
    text = (files(__package__) / LEARNING_RUN).read_text(encoding="utf-8")
    return parse_run_file(text, organiser.peer_id, LEARNING_RUN)


def _rounds_of(manifest: RunManifest, peers: int) -> int:
    """Return the rounds after which a run ends if so many members read all they may: nobody waits for more."""
    goal = manifest.goal
    return goal.total if goal.unit is Unit.ROUNDS else -(-goal.total // (peers * manifest.tokens_per_round))


def _start(run_file: Path | None) -> Brought | None:
    return start_of(run_file) if run_file is not None else None


def _private(organiser: Identity, manifest: RunManifest, changes: Mapping[str, Any]) -> SignedManifest:
    """Sign the same run by this organiser, whom nobody else knows; any present peer votes."""
    fields = {**manifest.model_dump(), "organiser": organiser.peer_id, "founders": "anyone", **changes}
    return sign(organiser, RunManifest.model_validate(fields))
