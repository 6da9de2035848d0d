"""A peer keeps its identity, and uses it once at a time."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from peer.files import write_atomically
from peer.keyfile import (
    IdentityLocked,
    KeyfileError,
    identity_lock,
    import_identity,
    load_identity,
    load_or_create_identity,
    next_incarnation,
    parse_key,
    to_pem,
)
from protocol.wire.canonical import Malformed
from protocol.wire.identity import Identity

ONE = Identity.from_seed(bytes(32))
TWO = Identity.from_seed(bytes([2]) * 32)


def test_made_once_and_private(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    assert load_identity(data) is None
    made = load_or_create_identity(data)
    assert load_or_create_identity(data).peer_id == made.peer_id
    assert stat.S_IMODE((data / "identity.pem").stat().st_mode) == 0o600
    assert sorted(os.listdir(data)) == ["identity.pem"]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_or_create_identity(tmp_path)
    (tmp_path / "identity.pem").chmod(0o644)
    with pytest.raises(KeyfileError, match="chmod 600"):
        load_identity(tmp_path)


@pytest.mark.parametrize("content", [b"", b"rubbish!", b"-----BEGIN PRIVATE KEY-----\nAAAA\n", bytes(5000)])
def test_a_damaged_key_is_one_sentence_and_stays(tmp_path: Path, content: bytes) -> None:
    write_atomically(tmp_path / "identity.pem", content)
    with pytest.raises(KeyfileError, match="damaged"):
        load_or_create_identity(tmp_path)
    assert (tmp_path / "identity.pem").read_bytes() == content


def test_import_takes_pem_and_base64_and_keeps_the_old_key(tmp_path: Path) -> None:
    import_identity(tmp_path, to_pem(ONE), force=False)
    with pytest.raises(KeyfileError, match="--force"):
        import_identity(tmp_path, to_pem(TWO), force=False)
    import_identity(tmp_path, base64.b64encode(TWO.seed) + b"\n", force=True)
    found = load_identity(tmp_path)
    assert found is not None and found.peer_id == TWO.peer_id
    assert parse_key((tmp_path / "identity.old-1.pem").read_bytes()).peer_id == ONE.peer_id


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from peer.keyfile import *\n"
        "try:\n  with identity_lock(pathlib.Path(sys.argv[1])): print('got it')\n"
        "except IdentityLocked as error: print(error)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with identity_lock(tmp_path):
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        with pytest.raises(IdentityLocked):
            import_identity(tmp_path, to_pem(ONE), force=True)
    assert f"process {os.getpid()}" in answer
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "got it\n"


def test_incarnations_only_grow(tmp_path: Path) -> None:
    assert [next_incarnation(tmp_path), next_incarnation(tmp_path), next_incarnation(tmp_path, 50)] == [1, 2, 50]
    assert next_incarnation(tmp_path, 7) == 51


@pytest.mark.parametrize("content", [b"x", b"", b"-4", b"9" * 30, bytes(11), None])
def test_a_damaged_incarnation_is_set_aside(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "incarnation"
    path.mkdir() if content is None else path.write_bytes(content)
    assert [next_incarnation(tmp_path, 50), next_incarnation(tmp_path)] == [50, 51]
    assert (tmp_path / "incarnation.corrupt").exists()


def test_no_flipped_bit_of_the_identity_makes_another_peer() -> None:
    raw = to_pem(ONE)
    assert parse_key(raw.partition(b"\n")[2]).peer_id == ONE.peer_id, "older files lack the line"
    for bit in range(8 * len(raw)):
        altered = bytearray(raw)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            found = parse_key(bytes(altered))
        except Malformed:
            continue
        assert found.peer_id == ONE.peer_id, f"bit {bit}"
