"""Mirrors: web servers over the folder of a corpus, from which blocks are read by ranges.

A mirror is not trusted: every block is checked against its hash.  Policy:

* **Order.**  A hash of our peer ID and the first block draws the order in which the mirrors are asked, so that the load
  spreads over them.  If one fails, the next one goes on with the block that was not read yet.
* **Absence.**  A mirror that lacks a shard is not asked for it for a while; it may have the shards of another corpus.
* **Backoff.**  A mirror that fails is not asked for a while, twice as long each time, until a read from it succeeds.  It
  also fails if it gives no block for `SILENT_S`, and all its blocks come in another way meanwhile.
* **Set aside.**  A mirror that sends wrong bytes, or breaks a rule of `protocol.corpora.ranges`, is not asked again until
  this peer's next start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from urllib.parse import urlsplit

import trio

from protocol.bounds import BoundedDict
from protocol.corpora.ranges import RangeAbsent, RangeClient, RangeFailed, RangeForbidden
from protocol.corpora.shards import SHARDS, Shard, checked_leaves
from protocol.events.events import Event, Notice
from protocol.wire.hashes import HASH_BYTES, Hash, chunk_hash, hash_bytes
from protocol.wire.identity import PeerId

MAX_MIRRORS = 16
FIRST_REST_S, MOST_REST_S = 2.0, 300.0
ABSENT_S, MAX_ABSENT = 300.0, 1024
"""Seconds until a mirror is asked again for a shard that it lacked; most such shards remembered for a mirror."""
SILENT_S = 3.0
"""Seconds without a block after which a mirror has failed if its blocks came in another way."""
TOLD_FAILURES = 3
"""Failures in a row after which the user is told."""

Keep = Callable[[int, bytes], Awaitable[None]]
"""Receiver of a block that is right: its number in the shard, and its bytes."""


@dataclass
class _Mirror:
    """A mirror.  rests_until: trio time.  failures: in a row.  absent: when it lacked which shards."""

    url: str
    rests_until: float = -inf
    failures: int = 0
    absent: BoundedDict[Hash, float] = field(default_factory=lambda: BoundedDict(MAX_ABSENT))

    def may_be_asked(self, shard: Hash, now: float) -> bool:
        """Return True if the mirror may be asked for this shard now."""
        return self.rests_until <= now and now - self.absent.get(shard, -inf) >= ABSENT_S

    def lacks(self, shard: Hash, now: float) -> None:
        """Note that the mirror does not have this shard."""
        self.absent.renew(shard, now)

    @property
    def host(self) -> str:
        """Its name for people."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class _Range:
    """Consecutive pieces of a file, and the receiver of each one.

    is_overtaken: returns True if the reading is cancelled because the mirror has failed.
    """

    start: int
    sizes: Sequence[int]
    receive: Callable[[bytes], Awaitable[None]]
    is_overtaken: Callable[[], bool] = lambda: False


class Mirrors:
    """The mirrors of a run's corpora.  urls: addresses of the folders of corpora.  me: our peer ID."""

    def __init__(
        self, urls: Sequence[str], client: RangeClient, me: PeerId, emit: Callable[[Event], None] = lambda event: None
    ) -> None:
        self._mirrors = [_Mirror(url.rstrip("/")) for url in dict.fromkeys(urls)][:MAX_MIRRORS]
        self._client, self._me, self._emit = client, me, emit

    def are_ready(self, shard: Hash, now: float) -> bool:
        """Return True if there is a mirror that may be asked for this shard now.  now: trio time."""
        return any(mirror.may_be_asked(shard, now) for mirror in self._mirrors)

    def set_aside(self) -> list[str]:
        """Return the addresses of the mirrors that are not asked again."""
        return [mirror.url for mirror in self._mirrors if mirror.rests_until == inf]

    async def read_leaves(self, shard: Shard) -> list[Hash] | None:
        """Return the hashes of a shard's blocks; None if no mirror gives them."""
        found: list[list[Hash]] = []

        async def check(raw: bytes) -> None:
            leaves = checked_leaves(shard, raw)
            if leaves is None:
                raise RangeForbidden("sends hashes that do not have the root in the corpus's manifest")
            found.append(leaves)

        for mirror in self._in_order(shard.root, 0):
            if await self._read(mirror, shard.root, "leaves", _Range(0, [HASH_BYTES * len(shard)], check)):
                return found[0]
        return None

    async def read_blocks(
        self,
        shard: Shard,
        leaves: Sequence[Hash],
        numbers: range,
        keep: Keep,
        on_mirror: Callable[[str], None],
        are_here: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Read consecutive blocks of a shard; return False if no mirror gives some block.

        keep: called with each block that is right.  on_mirror: called with the name of each mirror that is asked.  are_here:
        called if the reading is cancelled; returns True if the blocks came in another way.  Raises what `keep` raises.
        """
        left, given_at = [*numbers], trio.current_time()

        def is_overtaken() -> bool:
            return trio.current_time() - given_at >= SILENT_S and are_here()

        async def check(data: bytes) -> None:
            nonlocal given_at
            if chunk_hash(data) != leaves[left[0]]:
                raise RangeForbidden(f"sends wrong bytes for {shard.name_of(left[0])}")
            await keep(left[0], data)
            del left[0]
            given_at = trio.current_time()

        for mirror in self._in_order(shard.root, numbers.start):
            on_mirror(mirror.host)
            given_at = trio.current_time()
            sizes = [shard.block(number).size for number in left]
            await self._read(mirror, shard.root, "shard", _Range(shard.spans[left[0]].start, sizes, check, is_overtaken))
            if not left:
                return True
        return False

    def _in_order(self, root: Hash, number: int) -> list[_Mirror]:
        """Return the mirrors that may be asked now, in the order in which to ask them."""
        drawn = self._me.encode() + root + number.to_bytes(4, "big")
        ready = [mirror for mirror in self._mirrors if mirror.may_be_asked(root, trio.current_time())]
        return sorted(ready, key=lambda mirror: hash_bytes("mirror of a block", drawn + mirror.url.encode()))

    async def _read(self, mirror: _Mirror, shard: Hash, ending: str, wanted: _Range) -> bool:
        """Read a range of a file of a mirror; return False if it fails."""
        url = f"{mirror.url}/{SHARDS}/{shard.hex()}.{ending}"
        try:
            await self._client.read(url, wanted.start, wanted.sizes, wanted.receive)
        except RangeForbidden as error:
            mirror.rests_until = inf
            self._emit(
                Notice("warning", f"the mirror {mirror.host} {error}: it is not asked again; please tell the organiser")
            )
        except RangeAbsent:
            mirror.lacks(shard, trio.current_time())
            self._emit(Notice("debug", f"the mirror {mirror.host} does not have {shard.hex()}.{ending}"))
        except RangeFailed as error:
            self._let_rest(mirror, str(error))
        except trio.Cancelled:
            if wanted.is_overtaken():
                self._let_rest(mirror, "is too slow, and others were faster")
            raise
        else:
            mirror.failures = 0
            return True
        return False

    def _let_rest(self, mirror: _Mirror, flaw: str) -> None:
        """Note a failure.  flaw: a clause about the mirror."""
        mirror.failures += 1
        rest_s = min(FIRST_REST_S * 2 ** (mirror.failures - 1), MOST_REST_S)
        mirror.rests_until = trio.current_time() + rest_s
        level = "warning" if mirror.failures == TOLD_FAILURES else "debug"
        self._emit(Notice(level, f"the mirror {mirror.host} {flaw}: it is asked again in {rest_s:.0f} s"))
