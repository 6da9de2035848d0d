"""Reference weights of a run's KL term, which trainers, validators and seeds keep and serve to each other.

    reference/<root>.blob       the parameters in bf16, little endian (`protocol.blobs.store`)

The reference weights are the parameters of the state after `warm_rounds` rounds, with which rollouts began.  The record of
the next round names their root.  So every peer with the chain knows the root, and every branch has its own.  A peer at that
state writes the weights itself, before the record can exist; all other peers fetch them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from pathlib import Path

import trio

from protocol.blobs.swarm import Swarm
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Notice
from protocol.offload import Offload
from protocol.rollouts.trainer import Keeping
from protocol.tasks.library import BlobKind, Library
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role

KEEPERS = (Role.TRAINER, Role.VALIDATOR, Role.SEED)
LOOK_S = 0.25
RETRY_S = 5.0
"""Seconds to wait if no peer had the weights, or the disk failed."""
LONG_S = 120.0
"""Seconds without any source of the weights after which we tell the user the remedy."""


class Reference:
    """Reference weights at one trainer or seed, in a run with a KL term; call `run`.  sources: peers to ask first."""

    def __init__(
        self,
        session: Session,
        replica: Replica,
        keeping: Keeping,
        swarm: Swarm,
        offload: Offload,
        sources: Callable[[], Container[PeerId]],
    ) -> None:
        manifest = replica.manifest
        assert manifest.rl is not None, "no run with rollouts"
        self._session, self._replica, self._keeping, self._offload = session, replica, keeping, offload
        self._sources, self._files = sources, replica.store.reference
        self._round, self._size = manifest.rl.warm_rounds, manifest.reference_bytes
        self._piece = manifest.checkpoint_chunk_bytes
        self._library = Library(session, self._files, swarm, offload, BlobKind("reference", self._piece, at_once=1))
        self._known: tuple[Hash, Hash] | None = None
        """(Tip on which rollouts began, root of the weights at that tip)."""
        self._named_by: Hash | None = None
        """Hash of the record that names the root; None if we computed the root from our own state."""
        self._written_of = b""
        """Digest of the state from which we wrote the weights."""
        self._right: set[Hash] = set()
        """Roots of weights whose bytes were checked since our start."""
        self._trouble, self._lacking_since, self._told = "", math.inf, False

    # -- questions of a trainer ---------------------------------------------------------------------------------------

    @property
    def path(self) -> Path | None:
        """Path of our chain's reference weights; None unless we have them and have checked them."""
        root = self._root()
        if root is None or root not in self._right or not self._files.has(root):
            return None
        path = self._files.path(root)
        return path if path.exists() else None  # a missing file would kill the trainer process again and again

    def missing(self) -> str:
        """Return the reason why we lack our chain's weights, as a sentence; empty if we have them."""
        if self.path is not None:
            return ""
        if self._trouble:
            return self._trouble
        if self._replica.history.length <= self._round:
            return "the reference weights of the KL term are being written"
        if self._lacks_long():
            return self._nobody()
        return "the reference weights of the KL term are being fetched"

    def _lacks_long(self) -> bool:
        return trio.current_time() - self._lacking_since > LONG_S

    def _nobody(self) -> str:
        return (
            "no peer here has the reference weights of the KL term; restart a trainer or seed that was in the run when "
            f"round {self._round} began, or later"
        )

    def _root(self) -> Hash | None:
        """Return the root that our chain names; None if the chain is too short, or if its record was not read yet."""
        history = self._replica.history
        if self._known is None or history.length < self._round or history.tip_at(self._round) != self._known[0]:
            return None
        if history.length == self._round and self._keeping.mark.digest != self._written_of:
            return None  # our state has changed: we received the initial weights, or repaired the state
        return self._known[1]

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep our chain's weights on disk, until cancelled."""
        await self._offload(self._files.load)
        while True:
            try:
                await self._follow()
                self._trouble = ""
            except StoreFailed as error:
                trouble = f"the reference weights cannot be kept: {error}"
                if trouble != self._trouble:
                    self._session.emit(Notice("warning", trouble))
                self._trouble = trouble
                await trio.sleep(RETRY_S)
            await trio.sleep(LOOK_S)

    async def _follow(self) -> None:
        """Write or fetch the weights, if our chain has any.  Raises `StoreFailed`."""
        history = self._replica.history
        if history.length > self._round and not self._keeping.changing.locked():
            record = history.tip_at(self._round + 1)
            if record != self._named_by:
                named = history.commit_at(self._round).record.weights
                assert named is not None, "a record of a run with rollouts"
                self._known, self._named_by = (history.tip_at(self._round), Hash(named)), record
        if self.path is not None or history.length < self._round:
            return
        if history.length == self._round:
            await self._write_ours()
        elif (root := self._root()) is not None:
            await self._obtain(root)
        if self.path is not None:  # keep the newest of other branches' weights: we may go back to that branch
            for root in (await self._offload(self._others))[:-1]:
                await self._library.remove(root)
                self._right.discard(root)

    async def _write_ours(self) -> None:
        """Write the weights from our state, if rollouts begin with this state and it is not being changed."""
        try:
            self._keeping.changing.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            history, mark = self._replica.history, self._keeping.mark
            # the run's initial weights may still be missing
            has_begun = self._round > 0 or self._replica.manifest.genesis in (None, mark.digest)
            if mark.digest and mark.rounds == history.length == self._round and has_begun:
                root = await self._offload(self._write)
                self._known, self._named_by, self._written_of = (history.tip, root), None, mark.digest
                self._right.add(root)
        finally:
            self._keeping.changing.release()

    def _write(self) -> Hash:
        """Write the weights, unless we have them, and return their root.  Blocking."""
        state = self._replica.state
        leaves = [chunk_hash(piece) for piece in state.weights()]
        root = tree_root(leaves)
        if not self._files.is_right(root, self._size, self._piece):
            self._files.put(root, self._size, state.weights(), leaves)
        return root

    async def _obtain(self, root: Hash) -> None:
        """Check the weights on our disk, or fetch them from other peers."""
        here = await self._offload(self._files.is_right, root, self._size, self._piece)
        if here or await self._library.obtain(root, self._size, self._round, self._sources(), math.inf):
            self._right.add(root)
            self._lacking_since, self._told = math.inf, False
            return
        self._lacking_since = min(self._lacking_since, trio.current_time())
        if self._lacks_long() and not self._told:
            self._told = True
            self._session.emit(Notice("warning", self._nobody()))
        await trio.sleep(RETRY_S)

    def _others(self) -> list[Hash]:
        """Return the files of other branches, the oldest first; incomplete files come before complete ones.  Blocking."""
        self._files.check()
        whole, ours = self._files.sizes(), self._root()
        by_age = sorted(whole, key=lambda root: self._files.path(root).stat().st_mtime)
        return [*self._files.parts(), *(root for root in by_age if root != ours)]
