"""When somebody last used the computer, as logind, desktops and terminals tell it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from peer.rests.sensors import PEOPLE_S, Presence, Sensors

NOW = 1_000_000.0
LISTED = "  2 1000 anna seat0 tty2\n c1  120 gdm  seat0 tty1\n"
ACTIVE = "Type=wayland\nClass=user\nUser=1000\nIdleHint=no\nIdleSinceHint=0"
IDLE = "Type=wayland\nClass=user\nUser=1000\nIdleHint=yes\nIdleSinceHint=999880000000"
GREETER = "Type=wayland\nClass=greeter\nUser=120\nIdleHint=no\nIdleSinceHint=0"
X11 = ACTIVE.replace("wayland", "x11")


def presence(answers: Mapping[str, str], *, user: int = 1000, terminals: Sequence[Path] = ()) -> Presence:
    """Programs answer by the first word of theirs that is a key."""

    def run(words: Sequence[str]) -> str | None:
        return next((answer for key, answer in answers.items() if key in words), None)

    return Presence(run, terminals, lambda: NOW, user)


def sessions(*shown: str) -> dict[str, str]:
    return {"list-sessions": LISTED, "show-session": "\n\n".join(shown) + "\n"}


@pytest.mark.parametrize(
    ("answers", "unused_s"),
    [
        ({}, float("inf")),
        (sessions(GREETER), float("inf")),
        (sessions(ACTIVE, GREETER), 0.0),
        (sessions(IDLE, ACTIVE), 0.0),
        (sessions(ACTIVE) | {"GetIdletime": "t 95000\n"}, 95.0),
        (sessions(ACTIVE) | {"GetSessionIdleTime": "u 7000\n"}, 7.0),
        (sessions(ACTIVE) | {"xprintidle": "5000\n"}, 0.0),
        (sessions(X11) | {"xprintidle": "5000\n"}, 5.0),
        (sessions(IDLE.replace("999880000000", "soon")), 0.0),
        ({"list-sessions": "; rm\n--help x\n", "show-session": ACTIVE}, float("inf")),
    ],
)
def test_the_last_use_is_the_latest_that_anything_tells(answers: dict[str, str], unused_s: float) -> None:
    assert presence(answers).unused_s() == unused_s


def test_the_desktop_of_another_user_is_asked_through_logind_alone() -> None:
    answers = sessions(ACTIVE) | {"GetIdletime": "t 95000\n"}
    assert presence(answers, user=0).unused_s() == 0.0


def test_a_terminal_was_used_when_it_was_read(tmp_path: Path) -> None:
    for name, at in (("tty1", NOW - 300), ("4", NOW - 40), ("sda", NOW), ("tty", NOW)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (at, NOW))
    assert presence({}, terminals=[tmp_path, tmp_path / "missing"]).unused_s() == 40.0
    assert presence(sessions(IDLE), terminals=[tmp_path]).unused_s() == 40.0


def test_people_are_asked_for_only_if_that_matters_and_not_at_every_reading() -> None:
    asked, wanted = list[float](), [False]

    def unused_s() -> float:
        asked.append(1.0)
        return 100.0

    sensors = Sensors({}, asks_for_people=lambda: wanted[0], presence=unused_s)
    assert sensors.read().unused_s is None and not asked
    wanted[0] = True
    found = [sensors.read().unused_s for _ in range(3)]
    assert len(asked) == 1 and all(each is not None and 100.0 <= each < 100.0 + PEOPLE_S for each in found)
