"""`peer tasks rate`: records come back with their rates, and an interruption costs nothing that was measured."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.tasks import rating
from peer.tasks.rating import (
    Answering,
    MeasuredRates,
    OnProgress,
    Sampling,
    measure,
    survey,
)
from tests.trainer.rl.test_rating import CONFIG
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.environments.records import MAX_LINE_BYTES
from trainer.environments.task_file import digest_of, open_file
from trainer.rl.rating import Rater
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

COUNT, SAMPLES = 5, 2
TASKS: list[dict[str, Any]] = [
    {
        "problem_id": f"größer {at}",
        "task_type": "numeric_answer",
        "prompt": f"{at}?",
        "verification_info": json.dumps({"ground_truth": at, "tolerance": 2.50}),
        "metadata": {"of": ["ours", None, 1e-7]},
    }
    for at in range(COUNT)
]


@dataclass(frozen=True)
class Place:
    """Where a file is measured, and how."""

    source: Path
    target: Path
    how: Answering

    def measure(self, on_progress: OnProgress = lambda done, total: None, **changes: Any) -> MeasuredRates:
        return measure(self.source, self.target, replace(self.how, **changes), on_progress)

    @property
    def kept(self) -> Path:
        """What an interruption leaves."""
        return self.target.with_name(self.target.name + ".part")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    model = tmp_path / "model"
    model.mkdir()
    write_folder(model, CONFIG, in_blocks(random_parameters(CONFIG)), ExportFormat.FP32, context=64, eos=0)
    source = tmp_path / "tasks.jsonl"
    source.write_text("\n\n".join(map(json.dumps, TASKS)))
    return Place(source, tmp_path / "rated.jsonl", Answering(model, Sampling(samples=SAMPLES, max_tokens=4, slots=2)))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_written_again_with_their_rates(place: Place) -> None:
    told: list[tuple[int, int]] = []
    done = place.measure(lambda *progress: told.append(progress))
    found = read(place.target)
    assert [{**task, "solve_rate": rate, "samples": SAMPLES} for task, rate in zip(TASKS, done.rates, strict=True)] == found
    assert told == [(count, COUNT) for count in range(COUNT + 1)]
    assert done.digest == digest_of(place.target.read_bytes())
    assert open_file(str(place.target), done.digest).size == COUNT
    assert not place.kept.exists()
    with pytest.raises(PeerError, match="exists; remove it"):
        place.measure()


def test_tasks_without_ids_have_those_of_their_lines_afterwards(place: Place) -> None:
    nameless = [{key: value for key, value in task.items() if key != "problem_id"} for task in TASKS]
    place.source.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(map(json.dumps, nameless)).encode())
    place.measure()
    assert [record["problem_id"] for record in read(place.target)] == ["1", "3", "5", "7", "9"]
    before, after = (open_file(str(path)) for path in (place.source, place.target))
    for at in range(COUNT):
        assert before.problem(at).answer == replace(after.problem(at).answer, solve_rate=None)


class Interrupted(Exception):
    """Ctrl-C, at a place of our choice."""


def interrupt(place: Place, after: int) -> None:
    """Measure until so many tasks are done."""

    def stop(done: int, total: int) -> None:
        if done == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        place.measure(stop)


def test_who_is_interrupted_goes_on_there_and_comes_to_the_same(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.measure()
    whole = place.target.read_bytes()
    place.target.unlink()
    interrupt(place, 3)
    assert not place.target.exists()
    with place.kept.open("a") as file:
        file.write("[4, 0.")  # a line that a killed process began
    asked: list[int] = []
    rates = Rater.rates

    def watched(self: Rater, environment: Any, problems: list[int], *rest: Any) -> Any:
        asked.extend(problems)
        return rates(self, environment, problems, *rest)

    monkeypatch.setattr(Rater, "rates", watched)
    place.measure()
    assert len(asked) == COUNT - 3 and place.target.read_bytes() == whole


def test_what_was_measured_otherwise_is_not_gone_on_with(place: Place) -> None:
    interrupt(place, 1)
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure(sampling=Sampling(samples=SAMPLES, max_tokens=5))
    place.source.write_text(json.dumps(TASKS[0]))
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure()
    place.kept.write_text("no JSON")
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure()
    place.kept.unlink()
    place.measure()


@pytest.mark.parametrize("odd", ['"\\ud800"', "[" * 980 + "]" * 980])
def test_tasks_that_cannot_be_written_again_are_told_before_anything_is_measured(place: Place, odd: str) -> None:
    place.source.write_text("\n".join(map(json.dumps, TASKS)).replace('"ours"', odd))
    told: list[int] = []
    with pytest.raises(PeerError, match="cannot be written back|nested too deeply"):
        place.measure(lambda done, total: told.append(done))
    assert not told and not place.kept.exists()


def test_a_task_with_no_room_for_its_rate_is_told_before_anything_is_measured(place: Place) -> None:
    line = json.dumps(TASKS[0])
    place.source.write_text(line + " " * (MAX_LINE_BYTES - len(line.encode())))
    place.measure()
    place.target.unlink()
    place.source.write_text(line.replace("ours", "o" * (MAX_LINE_BYTES - len(line.encode()))))
    told: list[int] = []
    with pytest.raises(PeerError, match="no room for its solve_rate"):
        place.measure(lambda done, total: told.append(done))
    assert not told


def test_what_somebody_else_put_in_the_place_of_kept_rates_is_not_waited_for_nor_written_to(place: Place) -> None:
    for odd in (os.mkfifo, Path.mkdir):
        odd(place.kept)
        with pytest.raises(PeerError, match="is not a file; remove it"):
            place.measure()
        (place.kept.rmdir if place.kept.is_dir() else place.kept.unlink)()
    with place.kept.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure()
    place.kept.unlink()
    precious = place.kept.with_name("precious")
    place.kept.symlink_to(precious)
    place.measure()
    assert not precious.exists()
    place.target.unlink()
    place.target.symlink_to(precious)
    with pytest.raises(PeerError, match="exists; remove it"):
        place.measure()


def test_rates_of_odd_tasks_that_somebody_wrote_are_not_taken(place: Place) -> None:
    interrupt(place, 1)
    head = place.kept.read_text().splitlines()[0]
    for odd in ("[true, 0.5]", "[1e999, 0.5]", "[1, NaN]", "[1, 1e999]", "[-1, 0.5]", f"[1{'0' * 3000}, 0.5]", "[" * 3000):
        place.kept.write_text(f"{head}\n{odd}\n")
        assert interrupted_at(place, 0) == {}, odd


def interrupted_at(place: Place, after: int) -> dict[int, float]:
    """The rates that were kept when a measurement was interrupted."""
    interrupt(place, after)
    return dict(json.loads(line) for line in place.kept.read_text().splitlines()[1:])


def test_what_cannot_be_measured_is_told_in_a_sentence(place: Place) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(PeerError) as caught:
            place.measure(**changes)
        return caught.value.text

    assert "config.json" in refused(model=place.source.with_name("none"))
    assert "no token '<|im_end|>'" in refused(template="chatml")
    assert "a temperature must be above 0" in refused(sampling=Sampling(temperature=float("nan")))
    place.source.write_bytes(b"\x28\xb5\x2f\xfd")
    assert "unpack it first" in refused()
    place.source.write_text(json.dumps({**TASKS[0], "solve_rate": 2}))
    assert "line 1: solve_rate is not a number from 0 to 1" in refused()
    place.source.write_text(json.dumps(TASKS[0]).replace("1e-07", "1e400"))
    assert "cannot be written back" in refused()
    place.source.unlink()
    assert "there is no file" in refused()


def test_problems_spread_over_an_environment_are_measured_in_their_order(place: Place) -> None:
    told: list[tuple[int, int]] = []
    done = survey("mixture(sort, guess)", 3, place.how, lambda *progress: told.append(progress))
    assert len(done.rates) == 3 and told == [(count, 3) for count in range(4)]
    with pytest.raises(PeerError, match="did you mean 'sort'"):
        survey("sorts", 3, place.how)


def test_tasks_in_a_file_are_no_environment_to_look_at(place: Place) -> None:
    tasks = f'jsonl(path="tasks.jsonl", digest="{"0" * 32}")'
    for environment in (tasks, f"mixture(sort, {tasks})"):
        with pytest.raises(PeerError, match="is not sampled, .*; name the file"):
            survey(environment, 3, place.how)


def test_the_command_says_what_it_did_and_what_a_run_file_has(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--model", str(place.how.model), "--max-tokens", "4", "--samples", "2"]
    assert main(["tasks", "rate", str(place.source), *few]) == ExitCode.OK
    said = capsys.readouterr()
    target = place.source.with_name("tasks.rated.jsonl")
    assert f"tasks       {COUNT}, 2 answers to each" in said.out and "0 of 5 tasks\n" in said.err
    assert f'jsonl(path="tasks.rated.jsonl", digest="{digest_of(target.read_bytes())}")' in said.out
    assert main(["tasks", "rate", str(place.source), *few]) == ExitCode.INPUT
    assert "give another --out" in capsys.readouterr().err
    assert main(["tasks", "rate", "--environment", "sort", "--problems", "2", *few]) == ExitCode.OK
    assert "tasks       2, 2 answers to each" in capsys.readouterr().out
    assert main(["tasks", "rate", *few]) == ExitCode.USAGE


def test_an_interruption_is_told_with_the_way_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(what: Any, other: Any, how: Answering, on_progress: OnProgress) -> MeasuredRates:
        on_progress(3, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(rating, "measure", interrupted)
    monkeypatch.setattr(rating, "survey", interrupted)
    assert main(["tasks", "rate", str(place.source), "--model", str(place.how.model)]) == ExitCode.INTERRUPTED
    assert "3 of 5 tasks are measured; the same command continues there" in capsys.readouterr().err
    assert main(["tasks", "rate", "--environment", "sort", "--model", str(place.how.model)]) == ExitCode.INTERRUPTED
    assert "3 of 5 tasks are measured, and nothing is kept" in capsys.readouterr().err
