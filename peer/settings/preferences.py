"""Definitions of a peer's settings: type, default, notation and meaning of each.

A field of `Preferences` called `max_up` is the key `max_up` in peer.toml, the variable PEER_MAX_UP and the flag `--max-up`.
None, if a field allows it, stands for "not set".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from peer.settings.values import (
    COUNT,
    LOAD,
    POWER,
    RATE,
    RATE_OR_OFF,
    SHARE_OR_AUTO,
    SIZE,
    SWITCH,
    TEMPERATURE,
    TIME,
    Notation,
    Schedule,
    one_of,
    read_addresses,
    read_data,
    read_folders,
    read_gpus,
    read_metrics_port,
    read_name,
    read_networks,
    read_owners,
    read_path,
    read_port,
    read_processes,
    read_schedule,
    read_team,
    read_trackers,
)


@dataclass(frozen=True)
class Setting:
    """Definition of a setting.  live: True if a running peer applies a change at once.

    unset: words for the effect of a missing value.
    """

    name: str
    default: Any
    meaning: str
    notation: Notation
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

    @property
    def placeholder(self) -> str:
        """Word that stands for the value in help texts."""
        return self.notation.placeholder or self.name.upper()

    def read(self, text: str) -> Any:
        """Parse `text` as a value of the setting.  Raises ValueError with a sentence."""
        return self.notation.read(text)

    def shown(self, value: Any) -> str:
        """Return the value as a person would write it; empty if there is none."""
        return "" if value is None else self.notation.show(value)

    def told(self, value: Any) -> str:
        """Return the value as a person would write it; the words of `unset` if there is none."""
        return self.shown(value) or self.unset


def _setting(default: Any, meaning: str, notation: Notation, live: bool = False, unset: str = "") -> Any:
    meaning += f" (default: {unset})" * bool(unset)
    return field(default=default, metadata={"definition": (meaning, notation, live, unset)})


@dataclass(frozen=True)
class Preferences:
    """Values in force.  Rates are bytes a second, sizes are bytes."""

    name: str = _setting("", "name of this peer, as others see it", Notation(read_name), unset="from the peer ID")
    team: str = _setting(
        "", "name of the team for which this peer's credit counts, as others see it", Notation(read_team), unset="none"
    )
    role: str = _setting(
        "auto",
        "work of this peer; rollout, validator: in a run with rollouts; seed: keep and serve the state without training",
        one_of("auto", "trainer", "rollout", "validator", "seed"),
    )
    port: int | None = _setting(None, "TCP port to listen on", Notation(read_port), unset="4001, or a free one")
    announce: tuple[str, ...] | None = _setting(
        None,
        "addresses at which others reach this computer, as /ip4/203.0.113.7/tcp/4001",
        Notation(read_addresses, ",".join, "ADDRESS"),
        unset="from the variables of the machine's provider",
    )
    port_mapping: bool = _setting(True, "open the port in the router, by UPnP or NAT-PMP", SWITCH)
    relay: float = _setting(
        1.25e6,
        "limit of the traffic relayed for peers that cannot reach each other, in total; or off (default: 10Mbit)",
        RATE_OR_OFF,
    )
    generator: str = _setting(
        "auto",
        "generator of rollouts; auto: vLLM if it is installed and there is a GPU, otherwise the built-in one",
        one_of("auto", "builtin", "vllm"),
    )
    compile: str = _setting(
        "auto",
        "have torch compile the model's layers, which makes steps faster and the first one up to a minute longer; needs a "
        "C++ compiler; auto: on a GPU",
        one_of("auto", "on", "off"),
    )
    state: str = _setting(
        "auto",
        "place of the run's parameters and momentum, and of the peer's contribution; ram: memory; disk: files, read and "
        "written in order; auto: disk if memory is short",
        one_of("auto", "ram", "disk"),
    )
    threads: int | None = _setting(None, "CPU threads of the trainer", COUNT, live=True, unset="a fair share of the cores")
    gpus: str | None = _setting(
        None,
        "GPUs of this computer that share one model: all, or their numbers, e.g. 0,2",
        Notation(read_gpus, placeholder="all|NUMBERS"),
        unset="one, if there is one",
    )
    processes: int | None = _setting(
        None,
        "number of processes in which a CPU trains one model, e.g. one for each processor socket",
        Notation(read_processes, placeholder="N"),
        unset="1",
    )
    offload: str = _setting(
        "auto",
        "place of the trainer's parameters, gradients and optimiser, or beside an adapter of the frozen layers; on: the "
        "computer's memory, from which each layer is copied to the GPU; off: the GPU; auto: the computer's memory if the "
        "GPU's is too small",
        one_of("auto", "on", "off"),
    )
    max_up: float | None = _setting(
        None,
        "limit on the total upload rate, e.g. 20 or 20Mbit (bits), 1.5MB (bytes) a second",
        RATE,
        live=True,
        unset="no limit",
    )
    max_down: float | None = _setting(
        None,
        "limit on the total download rate, e.g. 20 or 20Mbit (bits), 1.5MB (bytes) a second",
        RATE,
        live=True,
        unset="no limit",
    )
    monthly_quota: int | None = _setting(
        None,
        "traffic in a month, up and down together, after which the peer rests until the month ends, e.g. 200GB",
        SIZE,
        live=True,
        unset="no limit",
    )
    max_disk: int | None = _setting(
        None, "limit on the size of the whole data directory, e.g. 50GB", SIZE, live=True, unset="no limit"
    )
    corpus: tuple[str, ...] | None = _setting(
        None,
        "folders of corpora on this computer, with colons between them, to read and serve in place",
        Notation(read_folders, ":".join, "FOLDER"),
        unset="none",
    )
    data: str | None = _setting(
        None,
        "own data to train on, in a run on the members' own data; it stays on this computer: a folder, a file, or a corpus",
        Notation(read_data, placeholder="FOLDER"),
        unset="none",
    )
    block_cache: int | None = _setting(
        None,
        "limit on the disk space of cached blocks of the run's corpora; the default is at least 4GB or half of the free "
        "disk",
        SIZE,
        unset="a tenth of the free disk",
    )
    keep_blocks: float | None = _setting(
        None,
        "share of the corpora's blocks to fetch and keep for others, within block_cache, e.g. 25 (percent), or auto: all if "
        "they fit in block_cache, otherwise as many as three copies need",
        SHARE_OR_AUTO,
        unset="auto",
    )
    mirror_networks: tuple[str, ...] | None = _setting(
        None,
        "private networks in which mirrors of the corpora may be asked, e.g. 192.168.1.0/24",
        Notation(read_networks, ",".join, "NETWORK"),
        unset="only public addresses",
    )
    schedule: Schedule | None = _setting(
        None,
        "compute only during these hours, e.g. mon-fri 18:00-08:00, sat-sun",
        Notation(read_schedule, lambda schedule: schedule.text, "HOURS"),
        live=True,
        unset="always",
    )
    max_temperature: float | None = _setting(
        None, "rest while a GPU is hotter than this, e.g. 83C", TEMPERATURE, live=True, unset="no limit"
    )
    max_power: float | None = _setting(
        None, "limit on the average power that a GPU draws, e.g. 200W", POWER, live=True, unset="no limit"
    )
    max_load: float | None = _setting(
        None,
        "limit on the share of the time in which the trainer computes, on a GPU or CPU, in percent, e.g. 60",
        LOAD,
        live=True,
        unset="no limit",
    )
    yield_gpu: bool = _setting(False, "rest while other programs use the GPU", SWITCH, live=True)
    unused_for: float | None = _setting(
        None,
        "compute only while nobody has used this computer for so long, e.g. 10min: keys, mice, terminals",
        TIME,
        live=True,
        unset="always",
    )
    on_battery: bool = _setting(False, "also compute on battery", SWITCH, live=True)
    serve_while_paused: bool = _setting(True, "keep serving data to others while the peer rests", SWITCH, live=True)
    metrics_port: int | None = _setting(
        None, "port on 127.0.0.1 that serves metrics for Prometheus", Notation(read_metrics_port), unset="none"
    )
    page: str | None = _setting(
        None,
        "folder in which to keep a web page about the run current, as `peer page FOLDER` does",
        Notation(read_path("a folder"), placeholder="FOLDER"),
        unset="none",
    )
    track: tuple[str, ...] | None = _setting(
        None,
        "trackers that get the run's curves as from `peer track TARGET`, with commas between them: tensorboard:FOLDER, "
        "wandb:PROJECT, mlflow:URI",
        Notation(read_trackers, ",".join, "TARGET"),
        unset="none",
    )
    owner: tuple[str, ...] | None = _setting(
        None,
        "peer IDs that may watch and steer this peer from elsewhere (`peer watch ADDRESS`)",
        Notation(read_owners, ",".join, "PEER"),
        unset="nobody",
    )
    log_format: str = _setting("human", "format of the log on standard output", one_of("human", "json"))


LIMITS = (
    "max_up",
    "max_down",
    "monthly_quota",
    "max_disk",
    "threads",
    "max_load",
    "max_power",
    "max_temperature",
)
"""Settings that limit the use of this computer, unless they are not set."""


SETTINGS = {each.name: Setting(each.name, each.default, *each.metadata["definition"]) for each in fields(Preferences)}
"""Settings by name, in the order of display."""


def limits_in_force(now: Preferences) -> dict[str, str]:
    """Return the limits that are set, as a person writes them, by name."""
    return {name: SETTINGS[name].shown(value) for name in LIMITS if (value := getattr(now, name)) is not None}


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for peers that a program starts, without the person's settings for their own peer."""
    ours = {setting.variable for setting in SETTINGS.values()} | {"PEER_RUN", "PEER_SENSORS"}
    return {name: value for name, value in environment.items() if name not in ours} | {"PEER_CONFIG": ""}
