"""`peer tasks rate`: records come back with their rates, and an interruption costs nothing that was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.tasks import rating
from peer.tasks.rating import AsInRun, Measured, Measuring, Sampling, measure
from protocol.run.manifest import demo_manifest
from tests.simulation.rollouts import rl_run
from tests.trainer.rl.test_rating import CONFIG
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.environments.jsonl import digest_of, open_file
from trainer.environments.solve_rates import SolveRates
from trainer.rl.rating import Rater
from trainer.weights.numbers import ExportFormat
from trainer.weights.writing import write_folder

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


@pytest.fixture
def what(tmp_path: Path) -> Measuring:
    (tmp_path / "model").mkdir()
    write_folder(
        tmp_path / "model", CONFIG, in_blocks(random_parameters(CONFIG)), ExportFormat.FP32, context=64, eos=0
    )  # fmt: skip
    source = tmp_path / "tasks.jsonl"
    source.write_text("\n\n".join(map(json.dumps, TASKS)))
    sampling = Sampling(samples=SAMPLES, max_tokens=4, slots=2)
    return Measuring(source, tmp_path / "rated.jsonl", tmp_path / "model", sampling)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_written_again_with_their_rates(what: Measuring) -> None:
    told: list[tuple[int, int]] = []
    done = measure(what, lambda *progress: told.append(progress))
    found = read(what.target)
    assert [{**task, "solve_rate": rate, "samples": SAMPLES} for task, rate in zip(TASKS, done.rates, strict=True)] == found
    assert told == [(count, COUNT) for count in range(COUNT + 1)]
    assert done.digest == digest_of(what.target.read_bytes())
    assert open_file(str(what.target), done.digest).size == COUNT
    assert not [*what.target.parent.glob("*.part")]
    with pytest.raises(PeerError, match="exists; remove it"):
        measure(what)


class Interrupted(Exception):
    """Ctrl-C, at a place of our choice."""


def interrupt(what: Measuring, after: int) -> Path:
    """Measure until so many tasks are done; the file with what is kept."""

    def stop(done: int, total: int) -> None:
        if done == after:
            raise Interrupted

    with pytest.raises(Interrupted):
        measure(what, stop)
    return what.target.with_name(what.target.name + ".part")


def test_who_is_interrupted_goes_on_there_and_comes_to_the_same(what: Measuring, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(what)
    whole = what.target.read_bytes()
    what.target.unlink()
    kept = interrupt(what, 3)
    assert not what.target.exists()
    with kept.open("a") as file:
        file.write("[4, 0.")  # a line that a killed process began
    asked: list[int] = []
    rates = Rater.rates

    def watched(self: Rater, environment: Any, problems: list[int]) -> Any:
        asked.extend(problems)
        return rates(self, environment, problems)

    monkeypatch.setattr(Rater, "rates", watched)
    measure(what)
    assert len(asked) == 2 and what.target.read_bytes() == whole


def test_what_was_measured_otherwise_is_not_gone_on_with(what: Measuring) -> None:
    kept = interrupt(what, 1)
    sampling = Sampling(samples=SAMPLES, max_tokens=5, slots=2)
    with pytest.raises(PeerError, match="rates of another measurement"):
        measure(Measuring(what.source, what.target, what.model, sampling))
    what.source.write_text(json.dumps(TASKS[0]))
    with pytest.raises(PeerError, match="rates of another measurement"):
        measure(what)
    kept.unlink()
    measure(what)


def test_what_cannot_be_measured_is_told_in_a_sentence(what: Measuring) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(PeerError) as caught:
            measure(Measuring(**{**vars(what), **changes}))
        return caught.value.text

    assert "there is no file" in refused(source=what.source.with_name("none"))
    assert "config.json" in refused(model=what.source.with_name("none"))
    assert "no token '<|im_end|>'" in refused(template="chatml")
    assert "a temperature is above 0" in refused(sampling=Sampling(temperature=float("nan")))
    what.source.write_bytes(b"\x28\xb5\x2f\xfd")
    assert "unpack it first" in refused()
    what.source.write_text(json.dumps({**TASKS[0], "solve_rate": 2}))
    assert "line 1: solve_rate is no number from 0 to 1" in refused()
    what.source.write_text(json.dumps(TASKS[0]).replace("1e-07", "1e400"))
    assert "cannot be written again" in refused()


def test_a_person_is_told_what_a_run_would_leave_out() -> None:
    lines = Measured((0.0, 1.0, 0.25, 0.75), "").told(SolveRates(0.1, 0.7))
    assert "0.500 on average; 1 of 4 tasks never solved, 1 always" in lines[0]
    assert "1 of 4, 3 left out by a solve_rate outside 0.1 to 0.7" in lines[1]


def test_answers_are_made_as_in_a_run() -> None:
    rl = rl_run().manifest.rl
    assert rl is not None
    assert AsInRun.of(rl_run().manifest) == AsInRun(rl.max_tokens, rl.temperature, "raw", SolveRates(0.1, 0.8))
    assert AsInRun().bounds == SolveRates(0.1, 0.8)
    with pytest.raises(PeerError, match="learns from text"):
        AsInRun.of(demo_manifest().manifest)


def test_the_command_says_what_it_did_and_what_a_run_file_has(what: Measuring, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["tasks", "rate", str(what.source), "--model", str(what.model), "--max-tokens", "4", "--samples", "2"]
    assert main(arguments) == ExitCode.OK
    said = capsys.readouterr()
    target = what.source.with_name("tasks.rated.jsonl")
    assert f"tasks       {COUNT}, 2 answers to each" in said.out and "0 of 5 tasks\n" in said.err
    assert f'jsonl(path="tasks.rated.jsonl", digest="{digest_of(target.read_bytes())}")' in said.out
    assert main(arguments) == ExitCode.INPUT and "give another --out" in capsys.readouterr().err


def test_an_interruption_is_told_with_the_way_on(
    what: Measuring, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(what: Measuring, on_progress: rating.OnProgress) -> Measured:
        on_progress(3, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(rating, "measure", interrupted)
    assert main(["tasks", "rate", str(what.source), "--model", str(what.model)]) == ExitCode.INTERRUPTED
    assert "3 of 5 tasks are measured; the same command goes on there" in capsys.readouterr().err
