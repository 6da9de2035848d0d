"""The names in docs/guides/programs.md exist: events, keys of the status, and metrics."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

from peer.control.metrics import families
from protocol.events.events import EVENTS
from protocol.events.status import PeerStatus, RolloutStatus
from tests.protocol.example_status import COMPUTER, GIVEN, TRAINING

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "programs.md").read_text()
FULL = replace(TRAINING, computer=COMPUTER, contribution=GIVEN, rollouts=RolloutStatus(reward=0.5))
OF_THE_LOOP = "manyhands_tasks"
"""Metric that the endpoint adds to those of the status."""


def test_the_events_have_the_promised_names_and_fields() -> None:
    promised = {"Started": [], "Left": ["problem"], "LinesLost": ["lines", "reason"]}
    for name, its_fields in promised.items():
        assert f"`{name}`" in GUIDE
        assert set(its_fields) <= {field.name for field in fields(EVENTS[name])}


def test_the_status_has_the_promised_keys() -> None:
    promised = {"provisional_rounds", "unconfirmed_by"}
    assert all(f"`{name}`" in GUIDE for name in promised)
    assert promised <= PeerStatus.__dataclass_fields__.keys() and promised <= FULL.to_fields().keys()


def test_every_metric_of_the_table_is_told() -> None:
    section = GUIDE.split("\n## Metrics", 1)[1]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    written = [name for row in rows for name in re.findall(r"`((?:manyhands)?_\w+)`", row)]
    names = [f"manyhands{name.removeprefix('manyhands')}" for name in written]
    told = {sample.name for family in families(FULL) for sample in family.samples} | {OF_THE_LOOP}
    assert len(names) > 30 and set(names) <= told, sorted(set(names) - told)
