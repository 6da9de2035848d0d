"""Lines of an event log that somebody else wrote, or that a crash damaged: what no peer writes is passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.control.client import stamped_in
from tui.picture import Picture
from tui.player import EventFile

GOOD = {
    "at": 1.0, "mono": 2.0, "event": "RoundCommitted",
    "round": 3, "tip": "ab", "members": ["a", "b"], "tokens": 9, "loss": 1.5, "mine": True,
}  # fmt: skip


def line(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode() + b"\n"


STRANGE = {
    "at is huge": line(at=int("9" * 400)),
    "at is beyond any calendar": line(at=1e18),
    "at is no number": line(at="now"),
    "mono is huge": line(mono=int("9" * 400)),
    "no time": b'{"event":"RoundCommitted"}\n',
    "a number of 5000 digits": b'{"at":1,"mono":1,"event":"RoundCommitted","round":' + b"9" * 5000 + b"}\n",
    "a whole number of 400 digits as a loss": line(loss=int("9" * 400)),
    "a truth as a number": line(tokens=True),
    "members that are numbers": line(members=[1, 2]),
    "a member that is a lone surrogate": line(members=["\ud800"]),
    "a field is missing": json.dumps({key: value for key, value in GOOD.items() if key != "tip"}).encode() + b"\n",
    "no such event": line(event="Nothing"),
    "an event whose name is a list": line(event=["RoundCommitted"]),
    "deep nesting": b'{"at":1,"mono":1,"event":"Notice","level":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "nesting that can just be read": line(members=json.loads("[" * 900 + "]" * 900)),
    "no JSON": b"{at:1}\n",
    "bytes that are no text": b'{"at":1,"mono":1,"event":"\xff\xfe"}\n',
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE.keys())
def test_a_line_that_no_peer_writes_is_passed_over_and_counted(tmp_path: Path, strange: bytes) -> None:
    assert stamped_in(strange) is None
    path = tmp_path / "events.jsonl"
    path.write_bytes(line() + strange + line(round=4))
    file, picture = EventFile([path]), Picture()
    assert len(file) == 2 and file.damaged == 1
    for stamped in file.read(0, 2):
        picture.apply(stamped)
        assert stamped.event.sentence()
    assert picture.committed == 2


@pytest.mark.parametrize("changes", [{}, {"loss": None}, {"tokens": 2**63}, {"loss": 1e300}, {"at": 0}, {"mono": -5.0}])
def test_a_line_that_a_peer_may_write_is_read(changes: dict[str, object]) -> None:
    stamped = stamped_in(line(**changes))
    assert stamped is not None and stamped.event.sentence()
    Picture().apply(stamped)
