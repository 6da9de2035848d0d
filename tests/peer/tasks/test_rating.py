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
    SHOWN_ANSWERS,
    Answering,
    AsInRun,
    MeasuredRates,
    OnProgress,
    Sampling,
    ShownAnswers,
    measure,
    survey,
)
from protocol.run.manifest import demo_manifest
from protocol.run.sections import TokenizerSection
from protocol.sync.fetchers import file_section
from tests.simulation.rollouts import rl_run
from tests.trainer.made_tokenizer import ENDS, VOCAB, make_tokenizer
from tests.trainer.rl.test_rating import CONFIG
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.environments.records import MAX_LINE_BYTES, SolveRates, read_tasks
from trainer.environments.task_file import RecordedTasks, digest_of, open_file
from trainer.rl.rating import Answer, Rater
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


@pytest.mark.parametrize("odd", ['"\\ud800"', "1e400", "[" * 980 + "]" * 980])
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


@pytest.mark.parametrize("layers", [10**6, 10**30])
def test_a_model_that_says_it_is_huge_costs_nothing(place: Place, layers: int) -> None:
    config = place.how.model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": layers}))
    with pytest.raises(PeerError, match="layers is [0-9]+; it must be at most 256; use another model"):
        place.measure()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_the_place_of_a_models_file_is_not_waited_for(place: Place, name: str) -> None:
    (place.how.model / name).unlink()
    os.mkfifo(place.how.model / name)
    with pytest.raises(PeerError, match="it is not a regular file"):
        place.measure()


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


def test_where_the_result_cannot_be_written_is_told_before_anything_is_measured(place: Place) -> None:
    nowhere = place.source.with_name("nowhere") / "rated.jsonl"
    with pytest.raises(PeerError, match=r"there is no folder .*nowhere; make it"):
        replace(place, target=nowhere).measure()
    with pytest.raises(PeerError, match="goes to a new file"):
        replace(place, target=place.source).measure()


@pytest.mark.parametrize("error", [RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()])
def test_too_little_memory_is_told_with_the_options_that_need_it(
    place: Place, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> Any:
        raise error

    monkeypatch.setattr(Rater, "rates", fail)
    with pytest.raises(PeerError, match="give a smaller --at-once or --max-tokens"):
        place.measure()
    with pytest.raises(PeerError, match="give a smaller --at-once or --max-tokens"):
        survey("sort", 1, place.how)


@pytest.mark.slow
def test_rates_of_another_tokenizer_or_other_end_tokens_are_not_gone_on_with(place: Place) -> None:
    config = CONFIG.changed(vocab=VOCAB)
    model = place.how.model.with_name("speaks")
    model.mkdir()
    write_folder(model, config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=64, eos=0)
    make_tokenizer(model / "tokenizer.json")
    place = replace(place, how=replace(place.how, model=model, ends=ENDS))
    interrupt(place, 1)
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure(ends=ENDS[:1])
    written = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps(written, indent=1))
    with pytest.raises(PeerError, match="rates of another measurement"):
        place.measure()


def test_problems_spread_over_an_environment_are_measured_in_their_order(place: Place) -> None:
    told: list[tuple[int, int]] = []
    done = survey("mixture(sort, guess)", 3, place.how, lambda *progress: told.append(progress))
    assert len(done.rates) == 3 and told == [(count, 3) for count in range(4)]
    with pytest.raises(PeerError, match="did you mean 'sort'"):
        survey("sorts", 3, place.how)


@pytest.mark.parametrize("digest", ["0", "0" * 32])
def test_tasks_in_a_file_are_no_environment_to_look_at(digest: str, place: Place) -> None:
    with pytest.raises(PeerError, match="is not sampled, .*; name the file"):
        survey(f'jsonl(path="tasks.jsonl", digest="{digest}")', 3, place.how)
    with pytest.raises(PeerError, match="is not sampled, .*; name the file"):
        survey(f'mixture(sort, jsonl(path="tasks.jsonl", digest="{"0" * 32}"))', 3, place.how)


def test_a_person_is_told_what_a_run_would_leave_out() -> None:
    rates, bounds = (0.0, 1.0, 0.25, 0.75), SolveRates(0.1, 0.7)
    lines = MeasuredRates(rates, "of a file").told(bounds)
    assert "0.500 on average; 1 of 4 tasks never solved, 1 always" in lines[0]
    assert "1 of 4, 3 left out by a solve_rate outside 0.1 to 0.7" in lines[1]
    assert "1 of 4, 0.1 to 0.7; a run also has the others" in MeasuredRates(rates).told(bounds)[1]


def test_answers_are_made_as_in_a_run() -> None:
    rl = rl_run().manifest.rl
    assert rl is not None
    assert AsInRun.of(rl_run().manifest) == AsInRun(rl.max_tokens, rl.temperature, "raw", (), SolveRates(0.1, 0.8))
    tokenizer = TokenizerSection(file=file_section(b"a tokenizer"), template="chatml", ends=[7, 5])
    spoken = AsInRun.of(rl_run().manifest.model_copy(update={"tokenizer": tokenizer}))
    assert (spoken.template, spoken.ends) == ("chatml", (7, 5))
    assert AsInRun().bounds == SolveRates(0.1, 0.8)
    with pytest.raises(PeerError, match="learns from text"):
        AsInRun.of(demo_manifest().manifest)


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


def test_answers_are_shown_with_what_was_expected() -> None:
    line = {"task_type": "numeric_answer", "prompt": "3 + 4?", "verification_info": {"ground_truth": 7}}
    lines = [json.dumps(line).encode()] * 9
    environment = RecordedTasks(read_tasks(lines), "")
    shown = ShownAnswers(environment)
    for copy in range(2):
        for problem in range(9):
            shown.note(Answer(problem, copy, ("It is\n7.",), 0.0))
    assert (
        shown.lines
        == ('answer      »3 + 4?« »It is 7.« scores 0; expected: 7 alone, after "Answer:", or in \\boxed{7}',)
        * SHOWN_ANSWERS
    )
    assert MeasuredRates((0.0,), "of a file", shown.lines).told(SolveRates())[-1] == shown.lines[-1]
