"""The files for machines without a person: what they start does what they say, by the environment alone."""

from __future__ import annotations

import configparser
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from peer.control.client import ControlClient
from peer.errors import ExitCode
from tests.e2e.swarm import Swarm

HEADLESS = Path(__file__).parent.parent.parent / "examples" / "headless"


def of_dockerfile() -> tuple[dict[str, str], list[str]]:
    """Its variables and its entry point."""
    lines = (HEADLESS / "Dockerfile").read_text().splitlines()
    variables = dict(line.removeprefix("ENV ").split("=", 1) for line in lines if line.startswith("ENV "))
    (entry,) = (line.removeprefix("ENTRYPOINT ") for line in lines if line.startswith("ENTRYPOINT "))
    return variables, json.loads(entry)


def of_unit() -> tuple[configparser.ConfigParser, list[str]]:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(HEADLESS / "manyhands.service")
    return unit, unit["Service"]["ExecStart"].split()


@pytest.mark.parametrize("kind", ["docker", "systemd"])
@pytest.mark.slow
def test_what_it_starts_joins_by_the_environment_and_is_the_same_peer_again(kind: str, tmp_path: Path) -> None:
    variables, entry = of_dockerfile() if kind == "docker" else ({}, of_unit()[1])
    entry = [Path(entry[0]).name, *entry[1:]]
    with Swarm.created(tmp_path) as swarm:
        folder = swarm.place("rented")
        environment = swarm.environment | variables | {"PEER_DATA_DIR": str(folder), "PEER_RUN": str(swarm.manifest)}
        environment |= {"PEER_ROLE": "seed", "PEER_PORT": "0", "PEER_LOG_FORMAT": "json"}
        peers = []
        for _ in range(2):
            with subprocess.Popen(
                [sys.executable, "-m", *entry], env=environment, text=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
            ) as process:
                assert process.stdout is not None
                started = json.loads(next(process.stdout))
                assert started["event"] == "Started" and started["data_dir"] == str(folder)
                peers.append(started["peer"])
                assert ControlClient(folder).status().role == "seed"
                process.send_signal(signal.SIGTERM)
                last = json.loads([*process.stdout][-1])
                assert (last["event"], last["exit_code"], process.wait()) == ("Left", 0, 0)
        assert peers[0] == peers[1]


def test_systemd_tries_again_what_may_mend_itself_only() -> None:
    unit, _ = of_unit()
    never = {ExitCode(int(code)) for code in unit["Service"]["RestartPreventExitStatus"].split()}
    again = {ExitCode.FAILED, ExitCode.UNREACHABLE, ExitCode.RESOURCES, ExitCode.TRAINER}
    assert unit["Service"]["Restart"] == "on-failure" and not never & again
    assert never == {ExitCode.USAGE, ExitCode.INPUT, ExitCode.IDENTITY, ExitCode.ALREADY_RUNNING, ExitCode.NOT_ADMITTED}


@pytest.mark.slow
def test_a_variable_names_the_run_and_a_word_goes_before_it(tmp_path: Path) -> None:
    with Swarm(tmp_path) as swarm:
        swarm.environment["PEER_RUN"] = "nonsense"
        said = swarm.command(swarm.place("peer"), "join", "--headless", code=ExitCode.INPUT)
        assert "nonsense is not a file" in said
        said = swarm.command(swarm.place("peer"), "join", "others", "--headless", code=ExitCode.INPUT)
        assert "others is not a file" in said
