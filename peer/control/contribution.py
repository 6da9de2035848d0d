"""Contribution of this peer to its run: rounds, tokens, rank and streaks, from the record chain.

`protocol.chain.credit` counts, so that all peers count in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import trio

from peer.control.ledger import CountedChain, ledger_of
from peer.files import read_json, write_atomically
from protocol.chain.credit import Credit, Ledger
from protocol.chain.store import Records
from protocol.chain.stored_run import ReadOnlyDisk
from protocol.events.status import ContributionStatus
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

FILE = "contribution.json"
FORM = 1
"""Number of the file's form; a file of another form is not read."""
MAX_FILE_BYTES = 64 << 20
AT_ONCE = 200
"""Records that one `read` counts: a long chain is counted in pieces, so that a peer can leave meanwhile."""
MOST_NEW = 16
"""Most rounds between two looks that count as today's: more were fetched, and are of earlier days."""


class ContributionCount:
    """Count of what the records in a run's folder credit to the peer `me`.  Blocking.

    today: returns the local date.  A file in the folder keeps what was counted: records of a large run take a minute to
    count, and no record says on which day it was made.
    """

    def __init__(self, run: Hash, me: PeerId, folder: Path, today: Callable[[], date] = date.today) -> None:
        self._me, self._today, self._path = me, today, folder / FILE
        self._chain = CountedChain(Records(ReadOnlyDisk(), folder / "records"), run)
        self._streak = 0
        self._day, self._tokens_today = today(), 0
        self._last_day: date | None = None
        """Last day with credit."""
        self._days = 0
        """Days in a row with credit, up to that day."""
        self._is_complete = False
        """True once all records that were there at the start are counted."""
        self._replaced = 0
        """Tokens of the records before a recount, while it runs; else 0."""
        self._load()
        self._kept = self.tip

    @property
    def tip(self) -> Hash:
        """Hash of the last counted record."""
        return self._chain.tip

    def read(self) -> bool:
        """Count the next records, all again if the peer has replaced counted ones; return False if more may be there."""
        known = self._tokens
        if self._chain.begins_anew():
            self._streak, self._is_complete, self._replaced = 0, False, known
        before, tokens = self._chain.length, self._tokens
        while self._chain.length < before + AT_ONCE and self._count_next():
            pass
        is_done = self._chain.length < before + AT_ONCE
        if self._is_complete and self._chain.length <= before + MOST_NEW:
            self._credit_today(self._tokens - tokens)
        self._is_complete = self._is_complete or is_done
        if is_done:  # rounds that were given up are of today: older ones are rarely given up
            self._tokens_today = max(0, self._tokens_today - max(0, self._replaced - self._tokens))
            self._replaced = 0
        return is_done

    def _count_next(self) -> bool:
        before = self._mine
        if self._chain.count_next() is None:
            return False
        is_counted = (self._mine.rounds, self._mine.batches) != (before.rounds, before.batches)
        self._streak = self._streak + 1 if is_counted else 0
        return True

    def _credit_today(self, tokens: int) -> None:
        self._begin_day()
        self._tokens_today += tokens
        if tokens and self._last_day != self._day:
            self._days = self._days + 1 if self._last_day == self._day - timedelta(days=1) else 1
            self._last_day = self._day

    def _begin_day(self) -> None:
        if self._day != (today := self._today()):
            self._day, self._tokens_today = today, 0

    @property
    def _mine(self) -> Credit:
        return self._chain.ledger.credits.get(self._me, Credit())

    @property
    def _tokens(self) -> int:
        return _tokens_of(self._mine)

    def ledger(self, most: int) -> dict[str, Any]:
        """Return the ledger of the counted records, as `peer.control.ledger.ledger` does."""
        return ledger_of(self._chain.ledger.credits, self._chain.length, most)

    def status(self) -> ContributionStatus:
        """Return what was counted."""
        self._begin_day()
        credits, mine = self._chain.ledger.credits, self._mine
        is_recent = self._last_day is not None and self._last_day >= self._day - timedelta(days=1)
        return ContributionStatus(
            rounds=mine.rounds,
            tokens=self._tokens,
            tokens_today=self._tokens_today,
            rank=1 + sum(_order(each) > _order(mine) for each in credits.values()) if self._tokens else None,
            contributors=sum(_tokens_of(each) > 0 for each in credits.values()),
            streak=self._streak,
            days=self._days if is_recent else 0,
        )

    def keep(self) -> None:
        """Write what was counted, if it has changed.  Raises OSError."""
        if not self._is_complete or self.tip == self._kept:
            return
        fields = {
            "form": FORM,
            "tip": self.tip.hex(),
            "length": self._chain.length,
            "streak": self._streak,
            "ledger": self._chain.ledger.to_fields(),
            "day": self._day.isoformat(),
            "tokens_today": self._tokens_today,
            "last_day": self._last_day.isoformat() if self._last_day is not None else None,
            "days": self._days,
        }
        write_atomically(self._path, json.dumps(fields, separators=(",", ":")).encode())
        self._kept = self.tip

    def _load(self) -> None:
        try:
            fields = read_json(self._path, MAX_FILE_BYTES)
            if fields["form"] != FORM:
                return
            ledger, tip = Ledger.from_fields(fields["ledger"]), Hash(bytes.fromhex(fields["tip"]))
            length, streak, tokens, days = (int(fields[name]) for name in ("length", "streak", "tokens_today", "days"))
            day, last = date.fromisoformat(fields["day"]), fields["last_day"]
            last_day = date.fromisoformat(last) if last is not None else None
            if min(length, streak, tokens, days) < 0:
                return
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
            return
        self._chain.resume(length, tip, ledger)
        self._streak, self._day, self._tokens_today, self._last_day, self._days = streak, day, tokens, last_day, days


def _tokens_of(credit: Credit) -> int:
    return credit.tokens + credit.accepted_tokens


def _order(credit: Credit) -> tuple[int, int]:
    """Return the key by which the ledger orders its members, the largest first."""
    return credit.tokens, credit.accepted_tokens


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 2.0
PIECE_S = 0.1
"""Pause between two pieces of a long chain."""
KEEP_S = 20.0
"""Seconds between two writes: the next process does not count the rounds of this time as today's, if this one is killed."""


class ContributionMonitor:
    """Keeps a count current, in `run`.

    tip: returns the hash of the newest record; None while the node does not run.  status: None before all is counted.
    """

    def __init__(self, count: ContributionCount, tip: Callable[[], Hash | None]) -> None:
        self._count, self._tip = count, tip
        self._lock = trio.Lock()
        self.status: ContributionStatus | None = None

    async def run(self) -> None:
        """Count until cancelled."""
        kept_at = trio.current_time()
        try:
            while True:
                async with self._lock:
                    if self.status is None or self._tip() not in (None, self._count.tip):
                        await self._read()  # the first time before the node runs, so that all later records are new
                    self.status = self._count.status()
                    if trio.current_time() - kept_at >= KEEP_S:
                        kept_at = trio.current_time()
                        with suppress(OSError):  # the store reports a full disk
                            await trio.to_thread.run_sync(self._count.keep)
                await trio.sleep(LOOK_S)
        finally:
            with trio.CancelScope(shield=True):
                async with self._lock:
                    with suppress(OSError):
                        self._count.keep()

    async def ledger(self, most: int) -> dict[str, Any]:
        """Return the ledger of all records, with at most `most` members."""
        async with self._lock:
            await self._read()
            return await trio.to_thread.run_sync(self._count.ledger, most)

    async def _read(self) -> None:
        while not await trio.to_thread.run_sync(self._count.read):
            await trio.sleep(PIECE_S)
