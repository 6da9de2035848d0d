"""The settings of a peer, each defined once: its type, default, notation and meaning.

A field of `Preferences` called `max_up` is the key `max_up` in peer.toml, the variable PEER_MAX_UP and the flag `--max-up`.
None, if a field allows it, stands for "not set".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from peer.settings.values import (
    Schedule,
    one_of,
    read_addresses,
    read_count,
    read_metrics_port,
    read_name,
    read_owners,
    read_port,
    read_power,
    read_rate,
    read_rate_or_off,
    read_schedule,
    read_size,
    read_switch,
    read_temperature,
    show_power,
    show_rate,
    show_rate_or_off,
    show_size,
    show_switch,
    show_temperature,
)

ROLES = ("auto", "trainer", "rollout", "validator", "seed")
GENERATORS = ("auto", "builtin", "vllm")
LOG_FORMATS = ("human", "json")


@dataclass(frozen=True)
class Setting:
    """Definition of a setting.  read: raises ValueError with a sentence.  placeholder: the value in the flag's help.

    aliases: other names of the flag.  choices: all permitted values.  live: a running peer takes a change at once.  unset:
    describes the effect of no value, in words.
    """

    name: str
    default: Any
    meaning: str
    read: Callable[[str], Any]
    show: Callable[[Any], str]
    placeholder: str | None
    aliases: tuple[str, ...]
    choices: tuple[str, ...] | None
    live: bool
    unset: str

    @property
    def flag(self) -> str:
        """Flag of `peer join`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Environment variable."""
        return f"PEER_{self.name.upper()}"

    def shown(self, value: Any) -> str:
        """Return the value as a person would write it; empty if there is none."""
        return "" if value is None else self.show(value)

    def told(self, value: Any) -> str:
        """Return the value as a person would write it; in words if there is none."""
        return self.shown(value) or self.unset


def _setting(
    default: Any,
    meaning: str,
    read: Callable[[str], Any],
    show: Callable[[Any], str] = str,
    placeholder: str | None = None,
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] | None = None,
    live: bool = False,
    unset: str = "",
) -> Any:
    return field(default=default, metadata={"how": (meaning, read, show, placeholder, aliases, choices, live, unset)})


_SIZE = (read_size, show_size, "SIZE")
_SWITCH = (read_switch, show_switch, "yes|no")


@dataclass(frozen=True)
class Preferences:
    """Values in force.  Rates are bytes a second, sizes are bytes."""

    name: str = _setting(
        "", "what others see as this peer's name (default: from the peer ID)", read_name, unset="from the peer ID"
    )
    role: str = _setting(
        "auto",
        "rollout, validator: of a run with rollouts; seed: keep and serve the state, do not train",
        one_of(ROLES),
        choices=ROLES,
    )
    port: int | None = _setting(
        None, "TCP port to listen on (default: 4001, or a free one)", read_port, unset="4001, or a free one"
    )
    announce: tuple[str, ...] | None = _setting(
        None,
        "where others reach this computer, as /ip4/203.0.113.7/tcp/4001 (default: what a provider's variables say)",
        read_addresses,
        ",".join,
        "ADDRESS",
        unset="as a provider says",
    )
    port_mapping: bool = _setting(
        True, "have the router open the port, by UPnP or NAT-PMP", read_switch, show_switch, "yes|no"
    )
    relay: float = _setting(
        1.25e6,
        "carry at most so much between peers that do not reach each other, all together; or off (default: 10Mbit)",
        read_rate_or_off,
        show_rate_or_off,
        "RATE|off",
    )
    generator: str = _setting(
        "auto",
        "who generates rollouts; auto: vLLM where it is installed and there is a GPU, else the built-in generator",
        one_of(GENERATORS),
        choices=GENERATORS,
    )
    threads: int | None = _setting(
        None,
        "CPU threads of the trainer (default: a fair share of the cores)",
        read_count,
        placeholder="N",
        live=True,
        unset="a fair share",
    )
    max_up: float | None = _setting(
        None,
        "send at most so much in all, e.g. 20 or 20Mbit (bits), 1.5MB (bytes) a second",
        read_rate,
        show_rate,
        "RATE",
        ("--up-limit",),
        live=True,
        unset="no limit",
    )
    max_down: float | None = _setting(
        None,
        "receive at most so much in all, written likewise",
        read_rate,
        show_rate,
        "RATE",
        ("--down-limit",),
        live=True,
        unset="no limit",
    )
    monthly_quota: int | None = _setting(
        None,
        "rest for the rest of a month in which so much was sent and received, e.g. 200GB",
        *_SIZE,
        live=True,
        unset="no limit",
    )
    max_disk: int | None = _setting(
        None, "disk that the whole data directory may take, e.g. 50GB", *_SIZE, live=True, unset="no limit"
    )
    keep_versions: int = _setting(2, "versions of the weights that stay whole", read_count, placeholder="N", live=True)
    weights_cap: int | None = _setting(
        None,
        "disk that all of them may take, e.g. 20GB (default: no more than needed)",
        *_SIZE,
        live=True,
        unset="as needed",
    )
    schedule: Schedule | None = _setting(
        None,
        "compute in these hours only, as: mon-fri 18:00-08:00, sat-sun",
        read_schedule,
        lambda it: it.text,
        "HOURS",
        live=True,
        unset="always",
    )
    max_temperature: float | None = _setting(
        None,
        "rest while a GPU is hotter, e.g. 83C",
        read_temperature,
        show_temperature,
        "CELSIUS",
        live=True,
        unset="no limit",
    )
    max_power: float | None = _setting(
        None,
        "draw at most so much on a GPU, on average, e.g. 200W",
        read_power,
        show_power,
        "WATTS",
        live=True,
        unset="no limit",
    )
    yield_gpu: bool = _setting(False, "rest while other programs use the GPU", *_SWITCH, live=True)
    on_battery: bool = _setting(False, "compute on battery, too", *_SWITCH, live=True)
    serve_while_paused: bool = _setting(True, "give others what they fetch here while it rests, too", *_SWITCH, live=True)
    metrics_port: int | None = _setting(
        None,
        "tell Prometheus's metrics on this port of 127.0.0.1 (default: not at all)",
        read_metrics_port,
        unset="not at all",
    )
    owner: tuple[str, ...] | None = _setting(
        None,
        "peer IDs that may watch and steer this peer from elsewhere (`peer watch ADDRESS`)",
        read_owners,
        ",".join,
        "PEER",
        unset="nobody",
    )
    log_format: str = _setting("human", "what log lines are", one_of(LOG_FORMATS), choices=LOG_FORMATS)


def _defined() -> dict[str, Setting]:
    return {each.name: Setting(each.name, each.default, *each.metadata["how"]) for each in fields(Preferences)}


SETTINGS = _defined()
"""Settings by name, in the order of display."""


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for peers that a program starts: a person's settings for their own peer do not count there."""
    ours = {setting.variable for setting in SETTINGS.values()} | {"PEER_RUN", "PEER_SENSORS"}
    return {name: value for name, value in environment.items() if name not in ours} | {"PEER_CONFIG": ""}
