"""Values as a person writes them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from peer.settings.preferences import SETTINGS, Preferences
from peer.settings.values import (
    RATE_OR_OFF,
    WEEK_MINUTES,
    mapped_addresses,
    read_addresses,
    read_count,
    read_name,
    read_port,
    read_rate,
    read_schedule,
    read_size,
    read_switch,
    read_team,
)

# ------------------------------------------------------------------------------------------------------------------------
# Addresses from the variables of providers.


def test_the_address_outside_is_taken_from_the_providers_variables() -> None:
    runpod = {"RUNPOD_PUBLIC_IP": "203.0.113.7", "RUNPOD_TCP_PORT_4001": "18733", "RUNPOD_TCP_PORT_22": "18732"}
    vast = {"PUBLIC_IPADDR": "2001:db8::7", "VAST_TCP_PORT_4001": "40017"}
    assert mapped_addresses(runpod, 4001) == ("/ip4/203.0.113.7/tcp/18733",)
    assert mapped_addresses(vast, 4001) == ("/ip6/2001:db8::7/tcp/40017",)
    assert mapped_addresses(runpod, 4002) == mapped_addresses({}, 4001) == (), "that port is not mapped"
    assert mapped_addresses(runpod | {"RUNPOD_TCP_PORT_4001": "none"}, 4001) == ()


# ------------------------------------------------------------------------------------------------------------------------
# Hours as a person writes them.


MONDAY = datetime(2026, 11, 23)


def allowed(text: str) -> list[str]:
    """Hours of the week in which to compute, as "mon 18"."""
    schedule = read_schedule(text)
    hours = [MONDAY + timedelta(hours=hour) for hour in range(7 * 24)]
    return [hour.strftime("%a %H").lower() for hour in hours if schedule.allows(hour)]


def test_hours_go_past_midnight_and_days_past_sunday() -> None:
    assert allowed("fri 22:00-02:00") == ["fri 22", "fri 23", "sat 00", "sat 01"]
    assert allowed("sun 23:00-01:00") == ["mon 00", "sun 23"], "the week begins again"
    assert len(allowed("sat-mon")) == 3 * 24 and allowed("sat-mon")[0] == "mon 00"
    assert allowed("06:00-07:00") == [f"{day} 06" for day in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")]
    assert len(allowed("mon-fri 18:00-08:00, sat-sun")) == 5 * 14 + 2 * 24 - 8, "saturday has its first eight hours twice"
    assert len(allowed("mon-sun")) == len(allowed("00:00-24:00")) == 7 * 24


def test_the_next_change_is_told() -> None:
    schedule = read_schedule("mon-fri 18:00-08:00")
    assert schedule.next_change(MONDAY.replace(hour=12, minute=10, second=9)) == MONDAY.replace(hour=18)
    assert schedule.next_change(MONDAY.replace(hour=18)) == MONDAY + timedelta(hours=32)
    assert schedule.next_change(MONDAY + timedelta(days=5, hours=9)) == MONDAY + timedelta(days=7, hours=18)
    always = read_schedule("mon-sun")
    assert always.next_change(MONDAY) == MONDAY + timedelta(minutes=WEEK_MINUTES)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some day",
        "mon 18",
        "mon 18:60-19:00",
        "mon-xyz",
        ",".join(["mon"] * 33),
    ],
)
def test_what_is_no_schedule_is_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match="schedule|day"):
        read_schedule(text)


# ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "right"),
    [
        (read_rate, {"20": 2.5e6, "20Mbit": 2.5e6, "1.5MB": 1.5e6, "16kB": 16e3, "1gbit": 125e6, "200kbit": 25e3}),
        (read_size, {"500MB": 500_000_000, "1.5GB": 1_500_000_000, "2tb": 2 * 10**12}),
        (read_port, {"0": 0, "4001": 4001, "65535": 65535}),
        (read_count, {"1": 1, "12": 12}),
        (read_switch, {"yes": True, "off": False, "True": True, "0": False}),
        (
            read_addresses,
            {
                "/ip4/1.2.3.4/tcp/5": ("/ip4/1.2.3.4/tcp/5",),
                "1.2.3.4,home.example.org:5000": ("/ip4/1.2.3.4/tcp/4001", "/dns/home.example.org/tcp/5000"),
            },
        ),
        (read_name, {"": "", "Ada's box": "Ada's box"}),
        (read_team, {"": "", "Night owls": "Night owls", "E\u0301quipe": "\u00c9quipe"}),
    ],
)
def test_what_is_right_is_read(read: Callable[[str], Any], right: dict[str, Any]) -> None:
    assert {text: read(text) for text in right} == right


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (RATE_OR_OFF.read, ["no", "0"]),
        (read_rate, ["", "fast", "0", "15kB", "-3", "nan", "1e99", "20 Mbit/s"]),
        (read_size, ["", "5", "5kB", "-1GB", "infGB", "nanGB", "x"]),
        (read_port, ["", "-1", "65536", "x", "\u00b2"]),
        (read_count, ["", "0", "-1", "1.5", "x"]),
        (read_switch, ["", "maybe"]),
        (
            read_addresses,
            [
                "",
                "/ip4/1.2.3/tcp/5",
                "/ip6/1.2.3.4/tcp/5",
                "/ip4/1.2.3.4/tcp/0",
                "/ip4/1.2.3.4/udp/5",
                "1.2.3.4:x",
                "a.b:80",
            ],
        ),
        (read_addresses, [",".join(["/ip4/1.2.3.4/tcp/5"] * 5)]),
        (read_name, ["n" * 41, "two\nlines"]),
        (read_team, ["n" * 25, "two\nlines", " ", "\u200b", "\u202eowls", "<b>"]),
    ],
)
def test_what_is_wrong_is_a_sentence(read: Callable[[str], Any], wrong: list[str]) -> None:
    for text in wrong:
        with pytest.raises(ValueError, match=r" "):
            read(text)


def test_what_is_shown_can_be_read_again() -> None:
    values: dict[str, Any] = {
        "name": "ada",
        "team": "Night owls",
        "role": "seed",
        "port": 0,
        "announce": ("/ip4/203.0.113.7/tcp/4001", "/ip6/2001:db8::7/tcp/80"),
        "port_mapping": False,
        "relay": 0.0,
        "generator": "vllm",
        "compile": "on",
        "state": "disk",
        "threads": 3,
        "gpus": "0,2",
        "processes": 2,
        "offload": "on",
        "max_up": 2.5e6,
        "max_down": 16e3,
        "monthly_quota": 200_000_000_000,
        "max_disk": 50_000_000_000,
        "corpus": ("/data/books", "/data/code"),
        "data": "/data/records",
        "block_cache": 20_000_000_000,
        "keep_blocks": 0.25,
        "mirror_networks": ("192.168.1.0/24", "fd00::/8"),
        "schedule": read_schedule("mon-fri 18:00-08:00"),
        "max_temperature": 83.5,
        "max_power": 200.0,
        "max_load": 0.6,
        "yield_gpu": True,
        "unused_for": 600.0,
        "on_battery": False,
        "serve_while_paused": False,
        "metrics_port": 9464,
        "page": "/srv/www/run",
        "track": ("tensorboard:/srv/curves", "mlflow:https://mlflow.example"),
        "owner": ("12D3KooWJYjp6S6dAhhbAY3ifDM7Jxm8fcSMfE83uBo6dWmGSPnf",),
        "log_format": "json",
    }
    assert list(values) == list(SETTINGS) == list(Preferences.__dataclass_fields__)
    for name, value in values.items():
        setting = SETTINGS[name]
        assert setting.read(setting.shown(value)) == value
        assert setting.default is None or setting.read(setting.shown(setting.default)) == setting.default
