"""What figures mean, as people and programs read them."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from peer.console.streams import ProgressLine
from peer.formatting import table
from peer.measurements.exchange import ExchangeSpeed
from peer.measurements.report import RunSize, fields, rows
from peer.measurements.speeds import CodecSpeed, DiskSpeed, Figures, LineSpeed, PeerLine, TrainingSpeed
from protocol.formatting import line_rate
from protocol.run.manifest import demo_manifest

RUN = RunSize("ours", 1_000_000, 2_040_000, members=4, round_tokens=50_000)
LINES = LineSpeed(
    "ab" * 32,
    [
        PeerLine("12D3KooWabcdef", "bob", 4 << 20, 1e6, ""),
        PeerLine("12D3KooWuvwxyz", "\x1b[2Jeve", 0, 0.0, "it sent nothing in time"),
    ],
    2e6,
)
ALL = Figures(
    codec=CodecSpeed(1e9, 2e9, 4000.0, 8000.0),
    exchange=ExchangeSpeed(1e8, 3, 8 << 20),
    training=TrainingSpeed(5000.0, "cpu", 2, 1_000_000, 20, precision="fp32", mfu=0.62),
    disk=DiskSpeed(2e8, 1e9, 256 << 20, False),
    lines=LINES,
    missing={},
)


def test_each_figure_has_its_meaning() -> None:
    found = {what: (figure, meaning) for what, figure, meaning in rows(ALL, RUN)}
    assert found["encode, one core"] == ("1.0 G parameters/s, 4000 MB/s", "1.0 ms for the parameters of ours")
    assert found["exchange, 3 peers here"][1] == "an exchange of ours takes 10.0 ms if lines take no time"
    assert found["training, demo model, cpu, 2 threads"] == (
        "5.0 k tokens/s, 62 % MFU in fp32",
        "a round of ours computes for 10 s",
    )
    assert found["disk, write"] == ("200.0 MB/s", "40.0 ms for a checkpoint of ours, 8.0 MB")
    assert found["from bob (…abcdef)"] == ("8.0 Mbit/s", "8 s for 8.0 MB that a newcomer fetches")
    assert found["to peers (seen in rounds, or the cap)"] == ("16.0 Mbit/s", "sends 1.5 MB in an exchange")
    assert found["both ways"] == ("8.0 Mbit/s", "1.5 s for an exchange of 4 members")


def test_names_of_strangers_move_no_cursor() -> None:
    lines = table(rows(ALL, RUN))
    assert all(line.isprintable() for line in lines)
    assert any("from [2Jeve (…uvwxyz)" in line and line.endswith("it sent nothing in time") for line in lines)


def test_what_is_missing_is_a_row_with_its_reason() -> None:
    assert rows(Figures(missing={"disk": "it is full; make room"}), RUN) == [
        ("disk", "not measured", "it is full; make room")
    ]
    unknown = rows(Figures(lines=replace(LINES, up_bytes_per_s=0.0)), RUN)
    assert unknown[-1][:2] == ("to peers", "not known yet")


def test_the_demo_is_measured_itself() -> None:
    demo = RunSize.of(demo_manifest().manifest, members=0)
    training = TrainingSpeed(5000.0, "cuda", 2, demo.parameters, 20)
    ((what, _, meaning),) = rows(Figures(training=training), demo)
    assert what == "training, demo model, cuda" and meaning == "a round of demo computes for 8.2 s"
    assert demo.members == 2, "nobody averages alone"


def test_programs_get_one_map_of_plain_values() -> None:
    found = json.loads(json.dumps(fields(ALL, "ab" * 32, RUN, 12.0)))
    assert found["run"]["id"] == "ab" * 32 and found["run"]["exchange_bytes"] == pytest.approx(1.53e6)
    assert found["lines"]["down_bytes_per_s"] == 1e6 and found["lines"]["peers"][1]["problem"]
    assert found["disk"]["read_is_cached"] is False and found["missing"] == {}
    assert line_rate(125_000) == "1.0 Mbit/s"


def test_progress_is_a_line_each_for_files_and_one_line_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, said in (
        (io.StringIO(), "measuring this …\nmeasuring that …\n"),
        (Terminal(), "\r\x1b[Kmeasuring this …\r\x1b[Kmeasuring that …\r\x1b[K"),
    ):
        progress = ProgressLine("measuring", stream)
        progress.say("this")
        progress.say("that")
        progress.end()
        assert stream.getvalue() == said
