"""What figures mean, as people and programs read them."""

from __future__ import annotations

from peer.formatting import table
from peer.measurements.exchange import ExchangeSpeed
from peer.measurements.report import RunSize, rows
from peer.measurements.speeds import CodecSpeed, DiskSpeed, Figures, LineSpeed, PeerLine, TrainingSpeed

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
