"""`peer tasks import`: published data sets become tasks, and what cannot be checked is left out with its reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.tasks import task_import
from peer.tasks.task_import import ImportOptions, Omission, import_tasks
from tests.peer.corpora.makers import write_rows
from tests.peer.corpora.test_inputs import stand_in
from trainer.environments.records import read_task

VALID = {"problem_is_valid": "Yes", "solution_is_valid": "Yes", "source": "olympiads", "synthetic": False}
NUMINA: list[dict[str, Any]] = [
    {"problem": "1+1?", "answer": "2", "question_type": "math-word-problem"},
    {"problem": "How dear?", "answer": "\\$ 1,000.00", "question_type": "math-word-problem"},
    {"problem": "How far?", "answer": "$5 \\mathrm{~km}$", "question_type": "math-word-problem"},
    {"problem": "Half?", "answer": "$\\frac{1}{2}$", "question_type": "math-word-problem"},
    {"problem": "Root?", "answer": "\\boxed{2\\sqrt{2}}", "question_type": "math-word-problem"},
    {"problem": "Which day?", "answer": "\\text{Monday}", "question_type": "math-word-problem"},
    {"problem": "Show it.", "answer": "proof", "question_type": "math-word-problem"},
    {"problem": "Show this.", "answer": "2", "question_type": "proof"},
    {"problem": "Which?", "answer": "B", "question_type": "MCQ"},
    {"problem": "Which? (A) 1 (B) 2", "answer": "B", "question_type": "other"},
    {"problem": "Say " + "(A)" * 20_000, "answer": "C", "question_type": "math-word-problem"},
    {"problem": "Is it?", "answer": "Yes", "question_type": "math-word-problem"},
    {"problem": "See ![](https://example.org/a.png)", "answer": "3", "question_type": "math-word-problem"},
    {"problem": "Faulty", "answer": "3", "question_type": "math-word-problem", "problem_is_valid": "Incomplete"},
    {"problem": "Lost", "answer": "notfound", "question_type": "math-word-problem"},
    {"problem": "None", "answer": None, "question_type": "math-word-problem"},
    {"problem": "Both", "answer": "(1) 5; (2) 6", "question_type": "math-word-problem"},
    {"problem": "All", "answer": "all numbers that are odd and greater than three", "question_type": "math-word-problem"},
    {"problem": "Why", "answer": "the sum is always an odd number", "question_type": "math-word-problem"},
    {"problem": "1+1?", "answer": "3", "question_type": "math-word-problem"},
    {"problem": "x" * 70_000, "answer": "3", "question_type": "math-word-problem"},
]
GSM8K = [
    {"question": "Eggs?", "answer": "She has 16-7=<<16-7=9>>9.\n#### 9"},
    {"question": "Dear?", "answer": "Much.\n#### 1,000"},
]


def written(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().splitlines()
    assert all(read_task(line) for line in lines)
    return [json.loads(line) for line in lines]


def test_rows_of_numina_become_tasks_or_are_left_out_with_the_reason(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "numina.parquet", [{**VALID, "solution": "So it is.", **row} for row in NUMINA])
    done = import_tasks(source, tmp_path / "tasks.jsonl", ImportOptions())
    tasks = written(tmp_path / "tasks.jsonl")
    assert [(task["task_type"], task["verification_info"]["ground_truth"]) for task in tasks] == [
        ("numeric_answer", "2"),
        ("numeric_answer", "\\$ 1,000.00"),
        ("numeric_answer", "5 \\mathrm{~km}"),
        ("numeric_answer", "\\frac{1}{2}"),
        ("verifiable_math", "2\\sqrt{2}"),
        ("exact_answer", "Monday"),
        ("exact_answer", "C"),
    ]
    assert tasks[0]["prompt"] == '1+1?\nEnd with "Answer:" and the answer.'
    assert tasks[2]["prompt"].endswith("and the answer with its unit.")
    assert tasks[0]["gold_standard_solution"] == "So it is.\nAnswer: 2"
    assert done.omitted == {
        Omission.CHOICE: 3, Omission.PROOF: 2, Omission.UNANSWERED: 2, Omission.SEVERAL: 2, Omission.IMAGE: 1,
        Omission.FAULTY: 1, Omission.UNCHECKED: 1, Omission.REPEATED: 1, Omission.LONG: 1,
    }  # fmt: skip
    assert done.told().startswith("14 of 21 rows: 3 with choices to guess from, 2 that ask for a proof, 2 ")


def test_solutions_of_gsm8k_are_read_from_a_data_set_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "datasets", stand_in(GSM8K, calls))
    out = tmp_path / "gsm8k.jsonl"
    assert main(["tasks", "import", "hf:openai/gsm8k:main", "--out", str(out), "--request", ""]) == ExitCode.OK
    assert calls == [("openai/gsm8k", "main", "train", True)]
    tasks = written(out)
    assert [task["prompt"] for task in tasks] == ["Eggs?", "Dear?"]
    assert [task["gold_standard_solution"] for task in tasks] == ["She has 16-7=9.\nAnswer: 9", "Much.\nAnswer: 1,000"]
    said = capsys.readouterr().out
    assert "tasks       2: 2 numbers" in said and "left out    none of 2 rows" in said
    assert main(["tasks", "import", "hf:openai/gsm8k:main", "--out", str(out)]) == ExitCode.INPUT, "the file exists"
    for name in ("my tasks.jsonl", ".jsonl", "ä.jsonl"):
        assert main(["tasks", "import", "hf:openai/gsm8k:main", "--out", str(tmp_path / name)]) == ExitCode.INPUT
        assert "cannot read a file named" in capsys.readouterr().err and not (tmp_path / name).exists()


def test_rows_of_synthetic_1_keep_their_kinds_and_one_answer_of_many(tmp_path: Path) -> None:
    cases = {"language": "python", "test_cases": [{"type": "stdin_stdout", "input": "1", "output": "1", "fn_name": None}]}
    rows = [
        {
            "problem_id": "a",
            "task_type": "verifiable_math",
            "prompt": "1/2?",
            "verification_info": '{"ground_truth": "0.5"}',
        },
        {
            "problem_id": "a",
            "task_type": "verifiable_math",
            "prompt": "1/2?",
            "verification_info": '{"ground_truth": "0.5"}',
        },
        {"problem_id": "b", "task_type": "verifiable_code", "prompt": "Echo.", "verification_info": repr(cases)},
        {"problem_id": "c", "task_type": "llm_judgeable_groundtruth_similarity", "prompt": "?", "verification_info": "{}"},
        {"problem_id": "d", "task_type": "verifiable_math", "prompt": "?", "verification_info": "__import__('os')"},
        {"problem_id": "e", "task_type": "verifiable_math", "prompt": "?", "verification_info": "(" * 5000},
    ]
    extra = {"llm_response": "thoughts", "score": 1.0, "gold_standard_solution": None, "metadata": "{}"}
    source = write_rows(tmp_path / "data" / "train-0.parquet", [row | extra for row in rows])
    done = import_tasks(source.parent, tmp_path / "tasks.jsonl", ImportOptions())
    assert done.kinds == {"MathsAnswer": 1, "CodeTests": 1}
    assert done.omitted == {Omission.REPEATED: 1, Omission.KIND: 1, Omission.BROKEN: 2}
    assert [task["problem_id"] for task in written(tmp_path / "tasks.jsonl")] == ["a", "b"]


def test_a_sample_is_spread_over_the_rows_and_a_full_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_rows(tmp_path / "sums.jsonl", [{"question": f"{n}+0?", "answer": n} for n in range(10)])

    def numbers(**options: Any) -> tuple[list[str], bool]:
        out = tmp_path / f"{options}.jsonl"
        done = import_tasks(source, out, ImportOptions(**options))
        return [task["verification_info"]["ground_truth"] for task in written(out)], done.is_full

    assert numbers(every=4) == (["0", "4", "8"], False)
    assert numbers(most=2) == (["0", "1"], True)
    assert numbers(rows=3) == (["0", "1", "2"], False)
    monkeypatch.setattr(task_import, "MAX_FILE_BYTES", 400)
    assert numbers() == (["0", "1"], True)


LONG = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 40, pyarrow.int32()), ["x" * 10_000])
HOSTILE = {
    "its column prompt is nested (list<": pyarrow.table({"prompt": [[{"role": "user"}]], "answer": ["2"]}),
    "its column answer appears twice": pyarrow.table([["a"], ["b"], ["c"]], ["question", "answer", "answer"]),
    "it has no column question, but text": pyarrow.table({"text": ["a"]}),
    "it has no question, problem or prompt": pyarrow.table({"solution": ["a"]}),
    "has more than 30 rows": pyarrow.table({"question": [str(n) for n in range(40)], "answer": ["2"] * 40}),
    "40 of 40 rows: 40 that are too long": pyarrow.table({"question": LONG, "answer": ["2"] * 40}),
    "is not a readable Parquet file": None,
}


@pytest.mark.parametrize("sentence", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_import, "MAX_ROWS", 30 if "30" in sentence else 40)
    monkeypatch.setattr("peer.corpora.readers.MAX_LINE_BYTES", 5_000)
    path, table = tmp_path / "a.parquet", HOSTILE[sentence]
    if table is None:
        path.write_bytes(b"PAR1" + b"\xff" * 50 + b"PAR1")
    else:
        pyarrow.parquet.write_table(table, path)
    with pytest.raises(PeerError) as caught:
        import_tasks(path, tmp_path / "tasks.jsonl", ImportOptions())
    assert sentence in caught.value.text and "\n" not in caught.value.text
    assert [*tmp_path.iterdir()] == [path]
