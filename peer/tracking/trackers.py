"""Trackers of curves.  Each tells which points it has, so a killed writer leaves no gap and repeats nothing.

* `tensorboard:FOLDER`: event files, of which the last steps are read at the start.
* `wandb:PROJECT`: a run with the ID of ours, which Weights & Biases resumes; with WANDB_MODE=offline each start writes a
  folder of its own with all points on this disk, and `wandb sync` joins them.
* `mlflow:URI`: a run with our tag on that server, which tells the last round whose `tokens` it has.

The packages of the first two are extras, imported when a tracker is opened. Keys and tokens come from the environment that
each of them documents; nothing here prints them.
"""

from __future__ import annotations

import json
import os
import re
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from peer.control.curves import StepBack
from peer.control.history import Round, RunHistory
from peer.errors import ExitCode, PeerError
from protocol.formatting import clean, plain
from trainer.extras import install_command

KINDS = ("tensorboard", "wandb", "mlflow")
SUFFIX = ".manyhands"
TAG = "manyhands.run"
ID_CHARACTERS = 32
MOST_METRICS = 1000
"""Most metrics in one request to MLflow, which is its limit."""
ANSWER_S = 30.0
MAX_ANSWER = 1 << 24


# ------------------------------------------------------------------------------------------------------------------------
# Points of a run's curves, one for each round, from the record chain and the event log on this disk.
#
# A tracker's steps never go back.  So the step of a round also counts the rounds that this peer gave up before it: their
# points stay, the rounds that replace them follow, and `rounds_given_up` gives their number.
#
# A round's point is due once its held-out loss is known, or `LATE_ROUNDS` later, or at the end: a tracker takes all values
# of a round at once, in the order of the rounds.


LATE_ROUNDS = 2
"""Rounds after which a point does not wait for its held-out loss; the loss comes within seconds, or not at all."""


@dataclass(frozen=True)
class Point:
    """Values at a step of a tracker, by name.  Names are short and plain; values are finite."""

    step: int
    values: Mapping[str, float]


def points_due(run: RunHistory, after: int, *, is_end: bool) -> list[Point]:
    """Return the points of later steps than `after` that are due.  is_end: True if no point has to wait any longer."""
    found, held_out, steps_back = list[Point](), run.held_out, run.steps_back
    for each, given_up in _counted(run.rounds, steps_back):
        step = each.rounds + given_up
        if step <= after:
            continue
        if not (is_end or each.rounds in held_out or each.rounds + LATE_ROUNDS <= len(run.rounds)):
            break
        values = {"tokens": float(each.tokens), "members": float(each.members), "loss/training": each.loss}
        values |= _by_source("training", each.losses)
        if each.reward is not None:
            values["reward"] = each.reward
        if (measured := held_out.get(each.rounds)) is not None:
            values |= {"loss/held_out": measured.loss, **_by_source("held_out", measured.losses)}
        if steps_back:
            values |= {"rounds": float(each.rounds), "rounds_given_up": float(given_up)}
        found.append(Point(step, {name: value for name, value in values.items() if isfinite(value)}))
    return found


def _counted(rounds: Sequence[Round], steps_back: Sequence[StepBack]) -> Iterator[tuple[Round, int]]:
    """Yield each round with the number of rounds given up before it was made; the number never falls."""
    given_up = 0
    totals: list[tuple[int, int]] = []
    for step in steps_back:
        given_up += max(0, step.abandoned)
        while totals and totals[-1][0] >= step.rounds:
            totals.pop()  # the rounds made after that earlier step back were given up as well
        totals.append((step.rounds, given_up))
    place = before = 0
    for each in rounds:
        while place < len(totals) and totals[place][0] < each.rounds:
            before = totals[place][1]
            place += 1
        yield each, before


def _by_source(kind: str, losses: Mapping[str, float]) -> dict[str, float]:
    """Name the losses by source; sources have names that an organiser chose, and trackers take names for paths."""
    named = ((plain(name).replace("/", "_"), loss) for name, loss in losses.items())
    return {f"loss/{kind}/{name if name.strip('.') else 'source'}": loss for name, loss in named}


# ------------------------------------------------------------------------------------------------------------------------


class Tracker(Protocol):
    """Place that keeps curves.  Its methods block, and raise the errors of its package."""

    def last(self) -> int:
        """Return the step of the tracker's newest point; 0 without one."""

    def write(self, points: Sequence[Point]) -> None:
        """Add points, in the order of their steps, so that they survive this process."""

    def close(self) -> None:
        """Write the remaining points and end."""


def open_tracker(target: str, run: str, name: str) -> Tracker:
    """Open a tracker by its target, such as `tensorboard:FOLDER`.  run: the run's ID.  name: the run's name.

    Raises PeerError with a sentence if the target is not a tracker, or if its package is missing.
    """
    kind, _, place = target.partition(":")
    makers: dict[str, Callable[[str, str, str], Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}
    if kind not in makers or not place:
        raise PeerError(
            f"{clean(target)} is not a tracker; write tensorboard:FOLDER, wandb:PROJECT or mlflow:URI", ExitCode.INPUT
        )
    return makers[kind](place, run, clean(name, 80))


def _package(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise PeerError(f"{extra} is not installed; run {install_command(extra)}", ExitCode.INPUT) from error


class TensorBoard:
    """Event files in a folder, each point flushed to the system before `write` returns."""

    def __init__(self, place: str, run: str, name: str) -> None:
        self._folder = (
            Path(os.path.expanduser(place)).absolute() / f"{re.sub('[^A-Za-z0-9_-]', '_', name)[:40] or 'run'}-{run[:8]}"
        )
        self._writers = _package("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._loader = _package("tensorboard.backend.event_processing.event_file_loader", "tensorboard")
        self._event = _package("tensorboard.compat.proto.event_pb2", "tensorboard").Event
        self._summary = _package("tensorboard.compat.proto.summary_pb2", "tensorboard").Summary
        self._writer: Any = None

    def last(self) -> int:
        """Return the newest step in our files.  A last record that was cut off by a death is skipped by the loader."""
        files = sorted(self._folder.glob(f"*{SUFFIX}")) if self._folder.is_dir() else []
        steps = (event.step for path in files for event in self._loader.EventFileLoader(str(path)).Load())
        return int(max(steps, default=0))

    def write(self, points: Sequence[Point]) -> None:
        """Add points."""
        if self._writer is None:
            self._writer = self._writers.EventFileWriter(str(self._folder), filename_suffix=SUFFIX)
        for point in points:
            values = [self._summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=time.time(), step=point.step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """Run of Weights & Biases, with the steps of the points.

    About this computer, it records only the kind of system and the versions of Python and of the package.
    """

    def __init__(self, place: str, run: str, name: str) -> None:
        self._wandb = _package("wandb", "wandb")
        settings = self._wandb.Settings(
            silent=True,
            console="off",
            host="manyhands",  # not this computer's name
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        self._run = self._wandb.init(project=place, id=run[:ID_CHARACTERS], name=name, resume="allow", settings=settings)

    def last(self) -> int:
        """Return the newest step; a resumed run begins after it."""
        return max(0, int(self._run.step) - 1)

    def write(self, points: Sequence[Point]) -> None:
        """Add points."""
        for point in points:
            self._run.log(dict(point.values), step=point.step, commit=True)

    def close(self) -> None:
        """Wait until everything is written, or sent."""
        self._run.finish()
        self._wandb.teardown()  # waits for its process, which writes the end of the file after `finish` has returned


class Mlflow:
    """A run of the experiment `manyhands` of an MLflow server, over its REST interface (version 2.0).

    MLflow's own client brings 25 packages for these five requests.  Errors are PeerErrors with a sentence.
    """

    def __init__(self, place: str, run: str, name: str) -> None:
        try:
            parts = urlsplit(place)
            is_server = parts.scheme in ("http", "https") and "@" not in parts.netloc  # its key belongs in the environment
        except ValueError:
            is_server = False
        if not is_server:
            shown = clean(place.rpartition("@")[2])  # without a password
            raise PeerError(f"{shown} is not an MLflow server; write mlflow:https://HOST", ExitCode.INPUT)
        self._base, self._opener = f"{place.rstrip('/')}/api/2.0/mlflow", build_opener(_NoRedirects)
        try:
            self._run, self._last = self._resume(run, name)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"{clean(place)} does not answer as an MLflow server: {error!r}", ExitCode.FAILED) from error

    def _resume(self, run: str, name: str) -> tuple[str, int]:
        """Return the ID of the run on the server, which is made if there is none, and its last step."""
        named = self._ask("experiments/search", {"filter": "name = 'manyhands'", "max_results": 1}).get("experiments", [])
        number = str((named[0] if named else self._ask("experiments/create", {"name": "manyhands"}))["experiment_id"])
        wanted = {"experiment_ids": [number], "filter": f"tags.`{TAG}` = '{run}'", "max_results": 1}
        found = self._ask("runs/search", wanted).get("runs", [])
        if found:
            metrics = found[0].get("data", {}).get("metrics", [])
            steps = (int(each["step"]) for each in metrics if each["key"] == "tokens")
            return str(found[0]["info"]["run_id"]), max(steps, default=0)
        tags = [{"key": TAG, "value": run}]
        new = {"experiment_id": number, "run_name": name, "start_time": int(1000 * time.time()), "tags": tags}
        return str(self._ask("runs/create", new)["run"]["info"]["run_id"]), 0

    def last(self) -> int:
        """Return the step of the newest value of `tokens`, which every point has."""
        return self._last

    def write(self, points: Sequence[Point]) -> None:
        """Add points; `tokens` comes last in each point, so that a point with `tokens` is complete."""
        now = int(1000 * time.time())
        metrics = [
            {
                "key": re.sub(r"[^A-Za-z0-9_./ -]", "_", name),
                "value": point.values[name],
                "timestamp": now,
                "step": point.step,
            }
            for point in points
            for name in sorted(point.values, key=lambda name: name == "tokens")
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            self._ask("runs/log-batch", {"run_id": self._run, "metrics": metrics[start : start + MOST_METRICS]})

    def close(self) -> None:
        """Do nothing: the run may go on."""

    def _ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        request = Request(f"{self._base}/{what}", json.dumps(body).encode(), {"Content-Type": "application/json", **_key()})
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                told = json.loads(answer.read(MAX_ANSWER))
        except (OSError, HTTPException, ValueError) as error:  # an HTTPError is an OSError
            raise PeerError(f"the MLflow server did not take {what}: {error}", ExitCode.FAILED) from error
        if not isinstance(told, dict):
            raise PeerError(f"the MLflow server answered {what} with something other than a JSON object", ExitCode.FAILED)
        return told


class _NoRedirects(HTTPRedirectHandler):
    """Handler that treats a redirection as an error, because its target would get our key."""

    def redirect_request(self, *words: Any, **named: Any) -> None:
        """Refuse every redirection."""


def _key() -> dict[str, str]:
    """Return the header that proves who we are, from the variables that MLflow documents; empty without them."""
    token, user = os.environ.get("MLFLOW_TRACKING_TOKEN"), os.environ.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        both = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        return {"Authorization": f"Basic {b64encode(both.encode()).decode()}"}
    return {}
