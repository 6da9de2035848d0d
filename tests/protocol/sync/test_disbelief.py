"""Whose claims about the chain are looked at, after some were false."""

from __future__ import annotations

from pathlib import Path

import trio

from protocol.sync.remote_chains import DISBELIEF_S
from tests.protocol.peers import BOB, ME
from tests.protocol.sync.table import CYN, Table, on_table


def test_a_peer_that_is_gone_is_not_believed_for_a_while(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        table.hear(BOB.peer_id, round=5, tip=b"\x05" * 32)
        await table.look()
        assert table.claims.ahead(known=False) == []
        await trio.sleep(DISBELIEF_S + 0.1)
        assert table.claims.ahead(known=False) == [BOB.peer_id]

    on_table(tmp_path, check)


def test_strangers_wait_after_one_of_them_showed_a_false_state(tmp_path: Path) -> None:
    async def check(table: Table) -> None:
        for peer in (BOB, CYN):
            table.hear(peer.peer_id, round=5, tip=b"\x05" * 32)
        table.claims.false_state(BOB.peer_id)
        assert table.claims.ahead(known=False) == []
        assert ME.peer_id not in table.claims.sources()

    on_table(tmp_path, check)
