"""The table of adapters in rounds in small: what is compared with what, and which bars count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import adapters
from benchmarks.adapters import TOGETHER, WHOLE, Bench, Case, Settings, Texts

SMALL = Settings("tiny", pretrain_steps=2, steps=8, evaluation_tokens=1 << 10)
DOCUMENTS = Texts(Path(__file__).parents[2] / "docs" / "internals", ".md")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Bench:
    return Bench(SMALL, tmp_path_factory.mktemp("base"), DOCUMENTS, DOCUMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [4, WHOLE])
def test_one_member_is_the_reference_whatever_is_trained(bench: Bench, rank: int) -> None:
    case = Case(0, 1e-2, members=1, inner_steps=4, rank=rank)
    loss = bench.run(case)
    assert loss == pytest.approx(bench.run(case.reference), rel=1e-3)
    assert loss < bench.start_loss("bf16")


def test_the_last_line_is_the_table_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Case] = []

    def run(self: Bench, case: Case) -> float:
        ran.append(case)
        return (
            2.0
            if case.inner_steps == TOGETHER
            else 2.02
            if case.inner_steps == 30
            else 2.009
            if case.fragments > 1
            else 2.001
        )

    monkeypatch.setattr(Bench, "run", run)
    monkeypatch.setattr(Bench, "start_loss", lambda self, base: 2.1)
    texts = f"{DOCUMENTS.folder}:{DOCUMENTS.suffix}"
    arguments = ["--base", str(tmp_path / "base"), "--pretrain", texts, "--adapt", texts, "--size", "tiny"]
    arguments += ["--pretrain-steps", "1", "--groups", "main,streamed,whole", "--json", "--save", str(tmp_path / "runs")]
    assert adapters.main(arguments) == adapters.main(arguments) == 1
    assert len(ran) == len(set(ran)) == 8
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    held = [(row["inner_steps"], row["fragments"], row["rank"] == WHOLE, row["holds"]) for row in table["rows"]]
    assert held == [
        (30, 1, False, False),
        (20, 1, False, True),
        (10, 1, False, True),
        (20, 1, False, True),
        (20, 4, False, False),
        (20, 1, True, None),
    ]
