"""Drawing with characters, and the status of a peer in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peer.formatting import columns, computer_rows, fit, gpu_line, limit_rows, pad, wrapped
from protocol.events.status import ComputerStatus, GpuStatus
from protocol.formatting import (
    clean,
    naming,
    short,
    visible,
)
from tests.hostile_texts import EACH_HOSTILE, HARMFUL
from tests.protocol.example_status import COMPUTER, status


@pytest.mark.parametrize("text", EACH_HOSTILE)
def test_a_hostile_text_is_bounded_and_harmless(text: str) -> None:
    assert len(clean(text)) <= 40 and columns(fit(text, 40)) <= 40 and columns(pad(text, 40)) == 40
    lines = wrapped(text[:5000], 30)
    assert all(0 < columns(line) <= 30 for line in lines)
    for shown in (clean(text), fit(text, 40), pad(text, 40), short(text), naming({"x": text})("x"), *lines):
        assert shown.isprintable() and not HARMFUL.search(shown)
    assert visible(text).replace("\n", "").isprintable()


def test_a_text_is_wrapped_by_the_columns_that_its_letters_take() -> None:
    assert wrapped("peers train  a model\ntogether", 9) == ["peers", "train a", "model", "together"]
    assert wrapped("志愿者一起训练模型", 8) == ["志愿者一", "起训练模", "型"]
    assert wrapped("a 志愿者", 6) == ["a", "志愿者"] and wrapped("志愿者", 1) == ["志愿者"] and wrapped(" ", 9) == []
    assert wrapped("\u0e17\u0e35\u0e48" * 3, 2) == ["\u0e17\u0e35\u0e48" * 2, "\u0e17\u0e35\u0e48"], "marks take no column"


def test_a_letter_keeps_as_many_marks_as_a_language_needs() -> None:
    assert clean("a" + "\u0301" * 9 + "b") == "a" + "\u0301" * 3 + "b" == fit("a" + "\u0301" * 9 + "b", 2)


def test_a_computer_is_described_as_far_as_it_is_known() -> None:
    assert computer_rows(status(computer=COMPUTER)) == [
        ("gpu", "97 % busy, 298 W, 71 °C, 19.3 GB of 25.7 GB, NVIDIA GeForce RTX 3090"),
        ("energy", "750 Wh since the start, 42.0 kWh in all"),
        ("processor", "14 % busy, 64 W, 11.8 GB of 33.5 GB of memory, AMD Ryzen 9 5950X 16-Core Processor"),
    ]
    assert computer_rows(status()) == []
    unknown = ComputerStatus(processor="x", memory_used=0, memory_total=1000, gpus=[GpuStatus()])
    assert computer_rows(status(computer=unknown)) == [("gpu", "no figures"), ("processor", "0 B of 1.0 kB of memory, x")]
    assert computer_rows(status(computer=ComputerStatus(processor="x"))) == [("processor", "x")]
    assert gpu_line(GpuStatus(name="\x1b[2J", watts=0.4)) == "0 W, [2J"


def test_limits_and_rests_are_named_as_settings() -> None:
    limited = replace(COMPUTER, memory_limit=8_000_000_000)
    planned = "from Monday 08:00, on battery"
    told = status(computer=limited, limits={"max_up": "20Mbit", "max_disk": "50GB"}, next_rest=planned)
    assert limit_rows(told) == [
        ("rests", planned),
        ("limits", "max_up 20Mbit, max_disk 50GB, memory 8.0 GB (container)"),
    ]
    assert limit_rows(status(computer=COMPUTER)) == [
        ("rests", "none planned; `peer config schedule` plans hours"),
        ("limits", "none; `peer config` sets some"),
    ]
    assert [word for word, _ in limit_rows(status(computer=COMPUTER, role="seed"))] == ["limits"], "it never computes"
    assert limit_rows(status()) == [], "of an older peer, nobody knows"
