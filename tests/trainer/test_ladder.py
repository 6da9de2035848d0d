"""The table of codecs in small: what is compared with what, and pairs of formats by their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import ladder
from benchmarks.diloco_bench import FP32, Bench, Case


def test_the_last_line_has_a_row_for_each_codec_over_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[Case] = []

    def run(self: Bench, case: Case) -> list[float]:
        ran.append(case)
        return [2.0 if case.exchange == FP32 else 2.01]

    monkeypatch.setattr(Bench, "run", run)
    words = ["--seeds", "0,1", "--members", "4", "--inner-steps", "30", "--codecs", "int4,int2", "--json"]
    for _ in range(2):
        assert ladder.main([*words, "--save", str(tmp_path / "runs")]) == 0
    assert len(ran) == 6, "finished runs are not run again"
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["codec"], row["members"], row["inner_steps"]) for row in rows] == [("int4", 4, 30), ("int2", 4, 30)]
    assert rows[0]["excess_percent"] == pytest.approx([0.5, 0.5])
    assert rows[0]["bits"] == pytest.approx([4.26, 4.26], abs=0.01)
    assert rows[1]["wire_bytes"] < rows[0]["wire_bytes"] == pytest.approx(54_168)


@pytest.mark.slow
def test_the_real_codecs_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert ladder.main(["--quick", "--codecs", "int8,int2"]) == 0
    assert "| int2 | 2 | 3 |" in capsys.readouterr().out
