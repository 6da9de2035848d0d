"""The usual port is for one peer of a computer; further ones take a free port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from peer.daemon import settings
from peer.daemon.settings import FREE, chosen_port


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A port that nobody listens on takes the place of the usual one."""
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path))
    with socket.create_server(("0.0.0.0", 0)) as probe:
        port = int(probe.getsockname()[1])
    monkeypatch.setattr(settings, "DEFAULT_PORT", port)
    return port


def test_the_usual_port_is_for_one_peer_at_a_time(usual: int) -> None:
    with chosen_port(None, local=False) as first, chosen_port(None, local=False) as second:
        assert (first, second) == (usual, FREE)
    with chosen_port(None, local=False) as later:
        assert later == usual


def test_a_port_that_another_program_uses_is_left_to_it(usual: int) -> None:
    with socket.create_server(("0.0.0.0", usual)), chosen_port(None, local=False) as port:
        assert port == FREE


def test_what_the_person_said_is_taken_and_local_peers_take_any() -> None:
    with chosen_port(4711, local=True) as said, chosen_port(None, local=True) as local:
        assert (said, local) == (4711, FREE)
