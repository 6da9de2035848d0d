"""Trackers: whoever is killed and begins again leaves no gap, and writes nothing twice."""

from __future__ import annotations

import json
import os
import posixpath
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest

from peer.control.curves import StepBack
from peer.control.history import HeldOut, Round, RunHistory
from peer.errors import PeerError
from peer.tracking import trackers
from peer.tracking.trackers import LATE_ROUNDS, Point, open_tracker
from tests.hostile_texts import EACH_HOSTILE, HARMFUL, HOSTILE

RUN = "ab" * 32
BLOCK = 1 << 15


def points(first: int, last: int) -> list[Point]:
    return [Point(step, {"tokens": 1000.0 * step, "loss/training": 1 / step}) for step in range(first, last + 1)]


KILLED = """
import os, sys
from peer.tracking.trackers import Point, open_tracker
tracker = open_tracker(sys.argv[1], {run!r}, "a run")
after = tracker.last()
tracker.write([Point(step, {{"tokens": 1000.0 * step, "loss/training": 1 / step}}) for step in range(after + 1, after + 6)])
os.kill(os.getpid(), 9)
"""


def killed(target: str, **environment: str) -> None:
    """Write five more points in a process that is killed then."""
    done = subprocess.run([sys.executable, "-c", KILLED.format(run=RUN), target], env=environment or None, check=False)
    assert done.returncode == -9


def steps_in(folder: Path) -> list[int]:
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader")
    events = [event for path in folder.glob("*/events*") for event in loader.EventFileLoader(str(path)).Load()]
    return sorted(event.step for event in events if event.summary.value)


@pytest.mark.slow
def test_event_files_of_killed_writers_are_whole_together(tmp_path: Path) -> None:
    for _ in range(2):
        killed(f"tensorboard:{tmp_path}")
    (cut,) = sorted(tmp_path.glob("*/events*"))[-1:]
    cut.write_bytes(cut.read_bytes()[:-5])  # as when the computer lost power
    tracker = open_tracker(f"tensorboard:{tmp_path}", RUN, "a run")
    assert tracker.last() == 9
    tracker.write(points(10, 12))
    tracker.close()
    assert steps_in(tmp_path) == list(range(1, 13))


@pytest.mark.slow
def test_weights_and_biases_has_everything_offline_after_a_writer_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    killed("wandb:project")
    tracker = open_tracker("wandb:project", RUN, "a run")
    assert tracker.last() == 0, "a folder of its own, with everything"
    tracker.write(points(1, 7))
    tracker.close()
    found = sorted((logged(folder) for folder in tmp_path.glob("wandb/offline-run-*")), key=len)
    assert len(found) == 2 and set(found[0]) <= set(range(1, 6)) and found[1] == list(range(1, 8))


def logged(folder: Path) -> list[int]:
    """The steps in an offline folder."""
    items = [item for record in records(folder) for item in record.history.item if "_step" in item.nested_key]
    return [int(item.value_json) for item in items]


def records(folder: Path) -> Iterator[Any]:
    """The records in an offline folder: protocol buffers in the log format of LevelDB, after a header of 7 bytes."""
    proto: Any = import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("run-*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = proto.Record.FromString(whole)
            whole = b""
            assert record.run.host in ("", "manyhands"), "this computer's name is nobody's business"
            yield record


# -- points: which are due, and what they hold ------------------------------------------------------------------------------


@dataclass
class Measured:
    """Rounds and held-out losses, written by hand."""

    rounds: list[Round]
    held_out: dict[int, HeldOut] = field(default_factory=dict)
    steps_back: list[StepBack] = field(default_factory=list)


def points_due(run: Measured, after: int, *, is_end: bool) -> list[Point]:
    return trackers.points_due(cast(RunHistory, run), after, is_end=is_end)


def made(number: int, losses: Mapping[str, float] = {}, loss: float = 2.0, reward: float | None = None) -> Round:
    return Round(number, 1000 * number, 3, loss, losses, reward)


def test_a_point_waits_for_its_held_out_loss_for_some_rounds_and_not_at_the_end() -> None:
    run = Measured([made(number) for number in range(1, 5)])
    assert LATE_ROUNDS == 2
    assert [point.step for point in points_due(run, 0, is_end=False)] == [1, 2]
    assert [point.step for point in points_due(run, 2, is_end=True)] == [3, 4]
    run.held_out[3] = HeldOut(1.5, {})
    (point,) = points_due(run, 2, is_end=False)
    assert point.step == 3
    assert point.values == {"tokens": 3000.0, "members": 3.0, "loss/training": 2.0, "loss/held_out": 1.5}
    assert points_due(run, 9, is_end=True) == [], "as after a rollback"


def test_values_that_are_no_numbers_and_names_that_are_no_names_do_no_harm() -> None:
    names = {"\x1b[31mred\u202e": 1.0, "a" * 100_000: 2.0, "": 3.0}
    run = Measured([made(1, names, loss=float("inf"), reward=float("nan"))])
    (point,) = points_due(run, 0, is_end=True)
    assert "loss/training" not in point.values and "reward" not in point.values
    assert len(point.values) == 2 + len(names)
    assert all(name.isprintable() and len(name) < 80 for name in point.values), point.values


def steps_of(run: Measured, after: int = 0) -> list[tuple[int, float, float]]:
    due = points_due(run, after, is_end=True)
    return [(each.step, each.values["rounds"], each.values["rounds_given_up"]) for each in due]


def test_rounds_that_replace_others_come_behind_them_as_a_tracker_takes_no_step_twice() -> None:
    run = Measured([made(number) for number in range(1, 15)])
    written = points_due(run, 0, is_end=True)[-1].step
    assert written == 14
    run.rounds = [made(number) for number in range(1, 14)]
    run.steps_back = [StepBack(1.0, 11, 0, 3)]  # rounds 12 to 14 are given up, of which 12 and 13 are made anew
    assert steps_of(run, written) == [(15, 12.0, 3.0), (16, 13.0, 3.0)]
    assert steps_of(run)[10:] == [(11, 11.0, 0.0), (15, 12.0, 3.0), (16, 13.0, 3.0)], "a new tracker has a gap there"


# -- hostile texts --------------------------------------------------------------------------------------------------------


def hostile_point() -> Point:
    losses = dict.fromkeys(HOSTILE.values(), 2.0)
    (point,) = points_due(Measured([made(1, losses)], {1: HeldOut(2.0, losses)}), 0, is_end=True)
    assert len(point.values) > 2 * len(HOSTILE) - 10, "only names without a letter are the same"
    return point


@pytest.mark.parametrize("name", EACH_HOSTILE)
def test_event_files_have_harmless_names_in_a_folder_of_their_own(tmp_path: Path, name: str) -> None:
    tracker = open_tracker(f"tensorboard:{tmp_path / 'in'}", RUN, name)
    tracker.write([hostile_point()])
    tracker.close()
    (path,) = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert re.fullmatch("[A-Za-z0-9_-]{1,40}-abababab", path.parent.name) and path.parent.parent == tmp_path / "in"
    loader: Any = import_module("tensorboard.backend.event_processing.event_file_loader")
    tags = [value.tag for event in loader.EventFileLoader(str(path)).Load() for value in event.summary.value]
    assert {*tags} == {*hostile_point().values} and not any(map(HARMFUL.search, tags))
    assert all(tag.isprintable() and len(tag) < 80 for tag in tags)


@pytest.mark.slow
def test_weights_and_biases_gets_harmless_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    name = "".join(text[:40] for text in HOSTILE.values() if not text.isprintable())
    tracker = open_tracker("wandb:project", RUN, name)
    tracker.write([hostile_point()])
    tracker.close()
    (folder,) = tmp_path.glob("wandb/offline-run-*")
    found = [*records(folder)]
    (shown,) = {record.run.display_name for record in found if record.run.display_name}
    assert shown.isprintable() and not HARMFUL.search(shown) and 0 < len(shown) <= 80
    keys = {"/".join(item.nested_key) for record in found for item in record.history.item}
    assert {*hostile_point().values} <= keys and not any(map(HARMFUL.search, keys))


@pytest.mark.parametrize("name", EACH_HOSTILE)
def test_an_mlflow_server_gets_names_that_it_takes(name: str) -> None:
    with mlflow() as (server, target):
        tracker = open_tracker(target, RUN, name)
        tracker.write([hostile_point()])
        (shown,) = server.names
        assert len(shown) <= 80 and not HARMFUL.search(shown) and (shown.isprintable() or not shown)
        keys = [metric["key"] for metric in server.metrics]
        assert keys[-1] == "tokens" and all(re.fullmatch(r"[\w./ -]{1,250}", key, re.ASCII) for key in keys)
        assert all(posixpath.normpath(key) == key for key in keys), "a path of another metric is refused"


# -- a server of MLflow ---------------------------------------------------------------------------------------------------


class FakeMlflow(ThreadingHTTPServer):
    """As much of an MLflow server as the requests need."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.experiments: list[str] = []
        self.runs: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.keys: set[str | None] = set()
        self.moved = ""
        """Address to which every request is sent on."""

    def answer(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        if what == "experiments/search":
            return {"experiments": [{"experiment_id": "7"}]} if self.experiments else {}
        if what == "experiments/create":
            self.experiments.append(body["name"])
            return {"experiment_id": "7"}
        if what == "runs/search":
            assert body["experiment_ids"] == ["7"] and RUN in body["filter"]
            newest = {metric["key"]: metric for metric in self.metrics}
            return {"runs": [{**run, "data": {"metrics": [*newest.values()]}} for run in self.runs]}
        if what == "runs/create":
            self.names.append(body["run_name"])
            self.runs.append({"info": {"run_id": "r1"}})
            return {"run": self.runs[0]}
        assert what == "runs/log-batch" and body["run_id"] == "r1" and len(body["metrics"]) <= 1000
        self.metrics += body["metrics"]
        return {}


class _Answers(BaseHTTPRequestHandler):
    server: FakeMlflow

    def do_GET(self) -> None:
        self.server.keys.add("followed")

    def do_POST(self) -> None:
        if self.server.moved:
            self.send_response(302)
            self.send_header("Location", self.server.moved)
            self.end_headers()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.keys.add(self.headers.get("Authorization"))
        told = json.dumps(self.server.answer(self.path.removeprefix("/api/2.0/mlflow/"), body)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@contextmanager
def mlflow() -> Iterator[tuple[FakeMlflow, str]]:
    server = FakeMlflow()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server, f"mlflow:http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_an_mlflow_server_gets_each_point_once_and_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with mlflow() as (server, target):
        killed(target, MLFLOW_TRACKING_TOKEN="secret", **_path())
        tracker = open_tracker(target, RUN, "a run")
        assert tracker.last() == 5 and len(server.runs) == 1
        tracker.write(points(6, 800))
        tracker.close()
        assert steps(server.metrics, "tokens") == steps(server.metrics, "loss/training") == list(range(1, 801))
        assert server.keys == {"Bearer secret"}


def _path() -> dict[str, str]:
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}


def steps(metrics: Sequence[dict[str, Any]], key: str) -> list[int]:
    return [metric["step"] for metric in metrics if metric["key"] == key]


def test_nobody_to_whom_a_server_sends_us_on_gets_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    with mlflow() as (server, target), mlflow() as (other, place):
        server.moved = f"{place.removeprefix('mlflow:')}/elsewhere"
        with pytest.raises(PeerError, match="302"):
            open_tracker(target, RUN, "a run")
        assert not other.keys


def test_an_answer_without_what_is_asked_for_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMlflow, "answer", lambda self, what, body: {"runs": [[]], "experiments": [{"experiment_id": 7}]})
    with mlflow() as (_, target), pytest.raises(PeerError, match="does not answer as an MLflow server"):
        open_tracker(target, RUN, "a run")


def test_a_server_that_is_not_there_is_told_in_a_sentence() -> None:
    with pytest.raises(PeerError, match="the MLflow server did not take experiments/search"):
        open_tracker("mlflow:http://127.0.0.1:9", RUN, "a run")


@pytest.mark.parametrize(
    "target",
    [
        "",
        "csv:here",
        "mlflow:file:///etc",
        "mlflow:https://me:secret@host",
        "\x1b[31m:x",
    ],
)
def test_what_is_no_tracker_is_refused_with_what_would_do(target: str) -> None:
    with pytest.raises(PeerError, match="write (tensorboard:FOLDER|mlflow:https)") as refused:
        open_tracker(target, RUN, "a run")
    assert str(refused.value).isprintable() and "secret" not in str(refused.value)
