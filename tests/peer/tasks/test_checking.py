"""A file of tasks is checked before anybody hears of it: errors with the line and the remedy, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard
from tokenizers.pre_tokenizers import ByteLevel

from peer.errors import PeerError
from peer.joining.run_source import create_run
from peer.paths import run_dir
from peer.tasks.checking import check, prepared
from tests.simulation.rollouts import rl_run
from tests.simulation.world import simulated_run
from tests.trainer.made_tokenizer import VOCAB, make_tokenizer

SIGNED = rl_run()
LINE = {"problem_id": "a", "task_type": "exact_answer", "prompt": "1+1?", "verification_info": {"ground_truth": "2"}}


def written(folder: Path, *lines: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ((LINE, "{"), "line 2: it is not JSON"),
        ((LINE, LINE), "line 2: problem_id 'a' was used in line 1"),
        ((LINE, {**LINE, "problem_id": "b", "hint": 1}), "line 2: the line has the unknown field 'hint'"),
        (({**LINE, "task_type": "judged"},), "line 1: task_type 'judged' is not one of"),
        (("",), "the file has no task"),
        (({**LINE, "prompt": "x" * 18},), "18 bytes, and this run learns from prompts of at most 17"),
    ],
)
def test_what_is_no_set_for_this_run_is_refused(tmp_path: Path, lines: tuple[object, ...], sentence: str) -> None:
    with pytest.raises(PeerError) as caught:
        check(SIGNED, written(tmp_path, *lines), tmp_path)
    assert sentence in caught.value.text


def test_too_many_tasks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.tasks.checking.MAX_SET_TASKS", 3)
    lines = [{**LINE, "problem_id": str(number)} for number in range(4)]
    assert len(check(SIGNED, written(tmp_path, *lines[:3]), tmp_path).tasks) == 3
    with pytest.raises(PeerError, match="split the file"):
        check(SIGNED, written(tmp_path, *lines), tmp_path)


def test_runs_without_rollouts_and_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="learns from text"):
        check(simulated_run(), written(tmp_path, LINE), tmp_path)
    with pytest.raises(PeerError, match="cannot read"):
        check(SIGNED, tmp_path / "nothing", tmp_path)


def test_tasks_outside_the_runs_solve_rates_do_not_count(tmp_path: Path) -> None:
    rated = [{**LINE, "problem_id": str(number), "solve_rate": rate} for number, rate in enumerate([0, 0.5, 1])]
    checked = check(SIGNED, written(tmp_path, *rated, {**LINE, "prompt": "x" * 18, "solve_rate": 1}), tmp_path)
    assert [task.problem_id for task in checked.tasks] == ["1"] and checked.kinds == {"ExactAnswer": 1}
    assert checked.told == "1 of 4, 3 left out by a solve_rate outside 0.1 to 0.8"
    with pytest.raises(PeerError, match="none of the 1 tasks has a solve_rate from 0.1 to 0.8"):
        check(SIGNED, written(tmp_path, rated[0]), tmp_path)


def test_a_set_that_comes_compressed_is_not_admitted(tmp_path: Path) -> None:
    """No trainer process can read it, and nothing could be admitted after it."""
    packed = tmp_path / "fetched"
    packed.write_bytes(zstandard.compress(written(tmp_path, LINE).read_bytes()))
    with pytest.raises(PeerError, match="is compressed, and trainers read plain lines"):
        check(SIGNED, packed, tmp_path)


def test_a_set_is_unpacked_into_the_runs_folder_and_taken_away_again(tmp_path: Path) -> None:
    plain = written(tmp_path, LINE, {**LINE, "problem_id": "b"})
    packed = tmp_path / "tasks.zst"
    packed.write_bytes(zstandard.compress(plain.read_bytes()))
    folder = run_dir(tmp_path, SIGNED.run) / "tasks"
    for source in (plain, packed):
        with prepared(SIGNED, source, tmp_path) as ready:
            assert (folder / ready.file).read_bytes() == plain.read_bytes()
            assert len(ready.tasks) == 2 and ready.kinds == {"ExactAnswer": 2}
        assert not [*folder.iterdir()]


@pytest.mark.slow
def test_prompts_are_looked_at_in_the_tokens_of_the_run(tmp_path: Path) -> None:
    run = (
        f'name = "sums"\n[model]\nvocab = {VOCAB}\ndim = 16\nlayers = 1\n[tokenizer]\nfrom = "tokenizer.json"\n'
        f'ends = [{sorted(ByteLevel.alphabet()).index("!")}]\ntemplate = "raw"\n'
        '[rl]\nenvironment = "add"\nproblems = 9\nmax_tokens = 16\nrow_tokens = 64\n'
    )
    (tmp_path / "run.toml").write_text(run)
    make_tokenizer(tmp_path / "tokenizer.json")
    signed = create_run(tmp_path / "run.toml", tmp_path / "data")
    shout = written(tmp_path, {**LINE, "prompt": "1+1!"})
    assert check(signed, shout, tmp_path / "elsewhere"), "who has not the file cannot tell"
    with pytest.raises(PeerError, match="the prompt of 'a' cannot be read by the run's model: .* ends a turn"):
        check(signed, shout, tmp_path / "data")
    assert check(signed, written(tmp_path, LINE), tmp_path / "data")
