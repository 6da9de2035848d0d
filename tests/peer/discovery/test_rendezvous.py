"""Peers of one computer find each other by files; dead ones leave nothing that misleads."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from peer.discovery.rendezvous import Rendezvous
from peer.files import HeldFile, read_held
from protocol.wire.hashes import hash_bytes
from protocol.wire.identity import Identity, PeerId

RUN = hash_bytes("test", b"run")


def peer_id() -> PeerId:
    return Identity.generate().peer_id


def address_of(peer: PeerId, port: int = 4001) -> str:
    return f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"


def test_peers_find_each_other_and_not_themselves(tmp_path: Path) -> None:
    first, second = peer_id(), peer_id()
    one, two = Rendezvous(tmp_path, RUN, first), Rendezvous(tmp_path, RUN, second)
    assert one.others() == []
    one.register([address_of(first)])
    two.register([address_of(second)])
    assert one.others() == [address_of(second)]
    assert two.others() == [address_of(first)]
    other_run = Rendezvous(tmp_path, hash_bytes("test", b"other"), peer_id())
    assert other_run.others() == []


def test_who_withdraws_is_gone_and_the_last_one_takes_the_folder_along(tmp_path: Path) -> None:
    first = peer_id()
    one, two = Rendezvous(tmp_path, RUN, first), Rendezvous(tmp_path, RUN, peer_id())
    one.register([address_of(first)])
    one.withdraw()
    assert two.others() == []
    assert not one.folder.exists()


def test_a_killed_peers_file_is_ignored_and_removed(tmp_path: Path) -> None:
    killed = peer_id()
    code = (
        "import os, sys; from pathlib import Path; from peer.discovery.rendezvous import Rendezvous\n"
        f"r = Rendezvous(Path(sys.argv[1]), bytes.fromhex({RUN.hex()!r}), {killed!r})\n"
        f"r.register([{address_of(killed)!r}]); print('up', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        reader = Rendezvous(tmp_path, RUN, peer_id())
        assert reader.others() == [address_of(killed)]
    finally:
        child.kill()
        child.communicate()
    assert reader.others() == []
    assert list(reader.folder.iterdir()) == []


def test_odd_files_give_no_addresses(tmp_path: Path) -> None:
    held = []
    reader = Rendezvous(tmp_path, RUN, peer_id())
    reader.folder.mkdir(parents=True)
    for content in (b"", b"{", b"[]", b'{"addresses": 3}', b'{"addresses": [1, "/ip4/1.2.3.4/tcp/1/p2p/QmSomebody"]}'):
        path = reader.folder / peer_id()
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        held.append(descriptor)
    (reader.folder / "README").write_text("not a peer")
    assert reader.others() == []
    for descriptor in held:
        os.close(descriptor)
    assert reader.others() == []
    assert [path.name for path in reader.folder.iterdir()] == ["README"]


def test_a_folder_that_another_removes_at_that_moment_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, file = tempfile.mkstemp, HeldFile(tmp_path / "folder" / "file")

    def removed_before(dir: Path, prefix: str) -> tuple[int, str]:
        monkeypatch.setattr(tempfile, "mkstemp", made)
        dir.rmdir()
        return made(dir=dir, prefix=prefix)

    monkeypatch.setattr(tempfile, "mkstemp", removed_before)
    file.put(b"here")
    assert read_held(file.path, 10) == b"here"
