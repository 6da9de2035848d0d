"""Values as a person writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peer.settings.preferences import SETTINGS, Preferences
from peer.settings.schedule import read_schedule
from peer.settings.values import (
    read_addresses,
    read_count,
    read_name,
    read_port,
    read_rate,
    read_rate_or_off,
    read_size,
    read_switch,
)


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
    ],
)
def test_what_is_right_is_read(read: Callable[[str], Any], right: dict[str, Any]) -> None:
    assert {text: read(text) for text in right} == right


@pytest.mark.parametrize(
    ("read", "wrong"),
    [
        (read_rate_or_off, ["no", "0"]),
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
    ],
)
def test_what_is_wrong_is_a_sentence(read: Callable[[str], Any], wrong: list[str]) -> None:
    for text in wrong:
        with pytest.raises(ValueError, match=r" "):
            read(text)


def test_what_is_shown_can_be_read_again() -> None:
    values: dict[str, Any] = {
        "name": "ada",
        "role": "seed",
        "port": 0,
        "announce": ("/ip4/203.0.113.7/tcp/4001", "/ip6/2001:db8::7/tcp/80"),
        "port_mapping": False,
        "relay": 0.0,
        "generator": "vllm",
        "threads": 3,
        "max_up": 2.5e6,
        "max_down": 16e3,
        "monthly_quota": 200_000_000_000,
        "max_disk": 50_000_000_000,
        "keep_versions": 5,
        "weights_cap": 1_500_000_000,
        "schedule": read_schedule("mon-fri 18:00-08:00"),
        "max_temperature": 83.5,
        "max_power": 200.0,
        "yield_gpu": True,
        "on_battery": False,
        "serve_while_paused": False,
        "metrics_port": 9464,
        "owner": ("12D3KooWJYjp6S6dAhhbAY3ifDM7Jxm8fcSMfE83uBo6dWmGSPnf",),
        "log_format": "json",
    }
    assert list(values) == list(SETTINGS) == list(Preferences.__dataclass_fields__)
    for name, value in values.items():
        setting = SETTINGS[name]
        assert setting.read(setting.shown(value)) == value
        assert setting.default is None or setting.read(setting.shown(setting.default)) == setting.default
