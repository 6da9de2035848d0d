"""What the doctor says about corpora: blocks here, mirrors and peers with the others, space, and a member's own data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from peer.doctor import corpora as doctor
from peer.doctor.checks import Check, CheckResult
from peer.doctor.corpora import CorporaHere, ask_mirrors, ask_peers, block_cache, blocks_here, find_corpora, own_data
from peer.paths import BLOCKS
from peer.resources.room import DiskRoom
from peer.settings.preferences import Preferences
from protocol.blobs.mirrors import RangeClient
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.run.manifest import RunManifest
from protocol.sync.fetchers import file_section
from protocol.transport.interface import Refused
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from tests.protocol.corpora import web
from tests.protocol.corpora.block_table import BlockTable, on_block_table
from tests.protocol.corpora.corpora import Corpus, a_corpus
from tests.protocol.corpora.web import Manner, Site, Web, files_of

CORPUS = a_corpus((80_000,), block_tokens=4096, shard_blocks=8)
ME = Identity.from_seed(bytes(32)).peer_id
URL = "http://mirror.test"


def a_run(corpus: Corpus = CORPUS) -> RunManifest:
    source = corpus.manifest.sources[0]
    data = {
        "corpora": [file_section(corpus.manifest.encode()).model_dump()],
        "sources": [{"name": source.name, "rows": corpus.manifest.rows(source.train, 512)}],
        "mirrors": [URL],
    }
    named = {"name": "run", "organiser": ME, "founders": [ME], "total_tokens": 10**9, "data": data}
    return RunManifest.model_validate(named)


def joined(folder: Path, corpus: Corpus = CORPUS) -> Path:
    """The folder of a run that a peer here has joined, with one block in its cache."""
    folder.mkdir()
    (folder / "files").mkdir()
    content = corpus.manifest.encode()
    name = Hash(bytes.fromhex(file_section(content).root))
    BlobStore(Disk(), folder / "files").path(name).write_bytes(content)
    block = corpus.blocks()[0]
    path = folder / BLOCKS / block.shard.hex() / "0"
    path.parent.mkdir(parents=True)
    path.write_bytes(corpus.bytes_of(block))
    return folder


def found(folder: Path, preferences: Preferences | None = None) -> CorporaHere:
    here = find_corpora(a_run(), folder, preferences or Preferences())
    assert here is not None
    return here


def test_blocks_here_are_counted_in_the_cache_and_in_corpora_in_place(tmp_path: Path) -> None:
    here = found(joined(tmp_path / "run"))
    assert (here.here_bytes, here.called) == (8192, "block 1 of source0")
    assert blocks_here(here).value == "8.2 kB of 160.0 kB are here; the rest is fetched as it is read"
    CORPUS.write(tmp_path / "built")
    whole = found(tmp_path / "run", Preferences(corpus=(str(tmp_path / "built"),)))
    assert whole.missing is None and whole.here_bytes == whole.whole_bytes


def test_only_blocks_that_are_in_the_cache_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, seen = joined(tmp_path / "run"), list[Path]()

    def size_of(path: Path) -> int:
        seen.append(path)
        return path.stat().st_size

    monkeypatch.setattr(doctor, "size_of", size_of)
    assert found(folder).here_bytes == 8192
    assert [path.name for path in seen] == ["0"]


def test_before_a_peer_has_joined_nothing_is_known_and_nothing_is_wrong(tmp_path: Path) -> None:
    assert find_corpora(a_run(), tmp_path, Preferences()) is None
    check = blocks_here(None)
    assert check.verdict is CheckResult.UNKNOWN and "when it joins" in check.remedy


def test_too_little_space_for_blocks_is_a_warning_with_a_remedy(tmp_path: Path) -> None:
    folder, preferences = joined(tmp_path / "run"), Preferences()
    here = found(folder)
    assert block_cache(here, folder, DiskRoom(tmp_path), preferences).verdict is CheckResult.OK
    check = block_cache(here, folder, DiskRoom(tmp_path, lambda: 30_000), preferences)
    assert check.verdict is CheckResult.WARN and "raise max_disk, or lower block_cache" in check.remedy


@pytest.mark.parametrize(
    ("manner", "networks", "told"),
    [
        (web.honest, ["93.184.216.0/24"], "http://mirror.test gives block 1 of source0"),
        (web.liar, ["93.184.216.0/24"], "sends hashes that do not have the root"),
        (web.missing, ["93.184.216.0/24"], "does not have"),
        (web.silent, ["93.184.216.0/24"], "mirror"),
    ],
)
def test_a_mirror_is_asked_for_a_block_which_is_checked(
    tmp_path: Path, manner: Manner, networks: list[str], told: str
) -> None:
    here, checks = found(joined(tmp_path / "run")), list[Check]()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            internet = Web(nursery)
            internet.add("mirror.test", "93.184.216.34", Site(files_of(CORPUS), manner))
            client = RangeClient([ip_network(each) for each in networks], dialer=internet)
            checks.extend(await ask_mirrors(a_run(), here, ME, Preferences(), client))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    [check] = checks
    assert told in check.value and (check.verdict is CheckResult.OK) == (manner is web.honest)
    assert bool(check.remedy) == (manner is not web.honest)


def test_peers_are_asked_who_has_a_missing_block(tmp_path: Path) -> None:
    here, checks = found(joined(tmp_path / "run")), list[Check]()

    def asked(*, built: bool) -> Callable[[BlockTable], Awaitable[None]]:
        async def check(table: BlockTable) -> None:
            table.add(built=built)
            reader = table.add()
            await trio.sleep(2)
            checks.append(await ask_peers(here, reader.network))

        return check

    on_block_table(CORPUS, asked(built=True))
    on_block_table(CORPUS, asked(built=False))
    assert [check.verdict for check in checks] == [CheckResult.OK, CheckResult.WARN]
    assert checks[0].value == "1 of 1 peer can give block 1 of source0"
    assert checks[1].value.startswith("none of 1 peer") and "a peer that has the corpus" in checks[1].remedy


def test_nonsense_in_a_peer_s_answer_counts_as_no_block(tmp_path: Path) -> None:
    class Network:
        def connected(self) -> list[Any]:
            return [ME]

        async def request(self, *args: Any, **options: Any) -> bytes:
            await trio.lowlevel.checkpoint()
            return b"\xff"

    class Closed(Network):
        async def request(self, *args: Any, **options: Any) -> bytes:
            await trio.lowlevel.checkpoint()
            raise Refused("this peer does not have that blob")

    for network in (Network(), Closed()):
        check = trio.run(ask_peers, found(joined(tmp_path / type(network).__name__)), network)
        assert check.verdict is CheckResult.WARN


def test_the_own_data_of_a_member_have_to_be_there(tmp_path: Path) -> None:
    assert own_data(Preferences(data=str(tmp_path))).verdict is CheckResult.OK
    assert own_data(Preferences(data="hf:someone/records")).verdict is CheckResult.OK
    gone, none = own_data(Preferences(data=str(tmp_path / "gone"))), own_data(Preferences())
    assert (gone.verdict, none.verdict) == (CheckResult.FAIL, CheckResult.WARN)
    assert "--role seed" in gone.remedy and "--data FOLDER" in none.remedy
