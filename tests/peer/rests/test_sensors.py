"""Batteries of all kinds, and what stands for the sensors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from peer.rests.sensors import Sensors, plugged
from tests.peer.rests.test_judge import NOON


def supply(folder: Path, name: str, **attributes: str) -> None:
    (folder / name).mkdir()
    for attribute, value in attributes.items():
        (folder / name / attribute).write_text(value + "\n")


@pytest.mark.parametrize(
    ("supplies", "is_plugged"),
    [
        ({}, None),
        ({"mouse": {"type": "Battery", "scope": "Device", "status": "Discharging"}}, None),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging"}, "ADP1": {"type": "Mains", "online": "0"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Not charging"}, "ADP1": {"type": "Mains", "online": "1"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}, "ucsi": {"type": "USB", "online": "1"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, True),
        ({"AC": {"type": "Mains", "online": "1"}}, True),
    ],
)
def test_only_a_battery_of_the_computer_that_discharges_is_a_battery(
    supplies: dict[str, dict[str, str]], is_plugged: bool | None, tmp_path: Path
) -> None:
    for name, attributes in supplies.items():
        supply(tmp_path, name, **attributes)
    assert plugged(tmp_path) is is_plugged


def test_without_such_a_folder_nobody_can_tell(tmp_path: Path) -> None:
    assert plugged(tmp_path / "nothing") is None


def test_a_file_stands_for_the_sensors_and_says_nothing_when_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "sensors.json"
    sensors = Sensors({"PEER_SENSORS": str(path)})
    path.write_text(json.dumps({"temperature": 84, "plugged": False, "now": NOON.isoformat(), "gpu_used_by_others": 62}))
    reading = sensors.read()
    assert (reading.temperature, reading.plugged, reading.now, reading.gpu_used_by_others) == (84, False, NOON, 62)
    wrong = ["", "{", "[]", "[" * 5000, '{"temperature": "hot", "plugged": 1, "now": "then"}']
    wrong += ['{"temperature": ' + "9" * 500 + "}", '{"now": "9999-12-31T23:59"}', '{"temperature": true, "now": 3}']
    for text in wrong:
        path.write_text(text)
        reading = sensors.read()
        assert (reading.temperature, reading.plugged) == (None, None) and 2000 < reading.now.year < 3000
    path.unlink()
    assert sensors.read().temperature is None
    os.mkfifo(path)
    assert sensors.read().temperature is None, "it does not wait for somebody who writes"


def test_this_computer_is_read_without_an_error() -> None:
    assert Sensors({}).read().at > 0
