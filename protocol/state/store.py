"""What a peer stores about one run: records, branches, results, checkpoints, what binds its votes, and proofs.

    records/00000012            commit 12: record, index, certificate (canonical msgpack, behind its hash)
    branches/<slot>-00000012    commit 12 of a branch that is not our chain
    switch                      our chain is being exchanged for a branch: what is left to be moved
    results/00000012-00-<root>  codec bytes of a result; on disk before it is voted for, so there may be several of a round
    checkpoints/00000012-<tip>  outer state after 12 rounds on this tip, and ….leaves with the hashes of its pieces
    votes/00000012-<tip>        what binds this peer in the round on this tip
    evidence/<hash>             proofs that peers lied
    weights/                    versions of the weights (`protocol.state.weight_files`), once there is one
    files/                      the run's files, likewise, in a run that has some
    rollouts/                   batches of rollouts, likewise, in a run of reinforcement learning
    tasks/                      sets of tasks, likewise, what was signed about them, and what was counted
    reference/                  the weights that a run's KL term compares with, likewise
    standing                    how rollout peers and validators stand with us, likewise
    extension                   the organiser's newest extension of the run, signed
    chosen                      the record of an invitation to whose history this peer came over

Write, fsync, rename; then act.  A file that is torn or altered counts as absent and is moved out of the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.run.anchor import Anchor
from protocol.state.branch_files import BranchFiles
from protocol.state.chain_view import Chain
from protocol.state.checkpoints import Checkpoints
from protocol.state.disk import Disk
from protocol.state.evidence_files import EvidenceFiles
from protocol.state.guarded import read_guarded, write_guarded
from protocol.state.records import Records
from protocol.state.results import Results
from protocol.state.vote_files import VoteFiles
from protocol.state.weight_files import WeightFiles
from protocol.wire import canonical
from protocol.wire.body import decode_body

CHECKPOINTS_KEPT = 2
"""Until the next one is written, the one before these stays, too, if others fetch it: that takes its time."""
OTHERS_KEPT = 2
"""Checkpoints of branches: one that is about to be taken over, and one of what was given up last."""
JOURNAL_BYTES = 1024


@dataclass(frozen=True)
class _Switch:
    """From round `common` on our chain becomes what is in `slot`, up to `length`; what it was goes to `kept`."""

    common: int
    slot: str
    length: int
    kept: str


class Store:
    """Rooted at a folder of its own.  Blocking; call it in worker threads.

    What an earlier life left is made lasting before anything is built on it: that life may have died before it was.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.disk = root, disk or Disk()
        records, results, checkpoints = root / "records", root / "results", root / "checkpoints"
        evidence, votes, branches = root / "evidence", root / "votes", root / "branches"
        folders = (records, results, checkpoints, evidence, votes, branches)
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for left_over in [*results.glob(".part-*"), *root.glob("**/.*.new")]:
            self.disk.remove(left_over)
        for folder in (root, *folders):
            self.disk.settle(folder)
        self.records = Records(self.disk, records)
        self.branches = BranchFiles(self.disk, branches)
        self.results = Results(self.disk, results)
        self.checkpoints = Checkpoints(self.disk, checkpoints)
        self.votes = VoteFiles(self.disk, votes)
        self.evidence = EvidenceFiles(self.disk, evidence)
        self.weights = WeightFiles(self.disk, root / "weights")
        self.rollouts = WeightFiles(self.disk, root / "rollouts")
        self.files = WeightFiles(self.disk, root / "files")
        self.reference = WeightFiles(self.disk, root / "reference")
        self.tasks = WeightFiles(self.disk, root / "tasks")
        self._records, self._branches, self._journal = records, branches, root / "switch"
        self._chosen, self._standing, self._extension = root / "chosen", root / "standing", root / "extension"
        begun = read_guarded(self.disk, self._journal)
        if begun is not None:
            self._carry_out(_Switch(*canonical.decode(begun, max_bytes=JOURNAL_BYTES)))

    def choose(self, anchor: Anchor) -> None:
        """Our history is the one through this record, also after a restart.  Raises `StoreFailed`."""
        if self.chosen() != anchor:
            write_guarded(self.disk, self._chosen, anchor.encode())

    def chosen(self) -> Anchor | None:
        """The record to whose history we came over last."""
        raw = read_guarded(self.disk, self._chosen)
        return decode_body(Anchor, raw) if raw is not None else None

    def keep_standing(self, raw: bytes) -> None:
        """Replace what is known of rollout peers and validators.  Raises `StoreFailed`."""
        write_guarded(self.disk, self._standing, raw)

    def standing(self) -> bytes | None:
        """What an earlier life knew of them."""
        return read_guarded(self.disk, self._standing)

    def keep_extension(self, raw: bytes) -> None:
        """Replace the organiser's extension of the run.  Raises `StoreFailed`."""
        write_guarded(self.disk, self._extension, raw)

    def extension(self) -> bytes | None:
        """The organiser's newest extension that an earlier life heard of."""
        return read_guarded(self.disk, self._extension)

    def switch(self, common: int, slot: str, length: int, kept: str) -> None:
        """Exchange our records from `common` on for those in `slot` up to `length`; ours are in the slot `kept` then.

        Whenever we die, the next life finds the one chain or the other whole.  Raises `StoreFailed`.
        """
        assert slot != kept
        self.branches.drop(kept)
        self.disk.settle(self._branches)
        write_guarded(self.disk, self._journal, canonical.encode([common, slot, length, kept]))
        self._carry_out(_Switch(common, slot, length, kept))

    def _carry_out(self, switch: _Switch) -> None:
        """Move what has not been moved yet.  A record of the branch that is still in its slot has not; then the one in its
        place is ours."""
        for path in sorted(self._records.iterdir(), reverse=True):
            if not path.name.isdigit() or int(path.name) < switch.common:
                continue
            round, kept = int(path.name), self.branches.path(switch.kept, int(path.name))
            waits = self.branches.path(switch.slot, round).exists()
            if (round >= switch.length or waits) and not kept.exists():
                self.disk.move(path, kept)
        self.disk.settle(self._branches)
        for round in range(switch.common, switch.length):
            path = self.branches.path(switch.slot, round)
            if path.exists():
                self.disk.move(path, self._records / f"{round:08}")
        self.disk.settle(self._records)
        self.disk.remove(self._journal)
        self.disk.settle(self.root)
        if switch.slot:
            self.branches.drop(switch.slot)

    def make_room(self, chain: Chain) -> None:
        """Before one more checkpoint of our chain is written: at most `CHECKPOINTS_KEPT` lie beside it, whoever reads."""
        for rounds in self.checkpoints.of(chain)[:-CHECKPOINTS_KEPT]:
            self.checkpoints.remove(rounds, chain.tip_at(rounds))

    def prune(self, chain: Chain, final: int) -> None:
        """Leave the newest checkpoints of our chain, with all results since the oldest, and what binds our votes there.

        final: rounds that are final.
        """
        mine = self.checkpoints.of(chain)
        kept = CHECKPOINTS_KEPT
        if len(mine) > kept and self.checkpoints.was_read((mine[-kept - 1], chain.tip_at(mine[-kept - 1])), mine[-kept]):
            kept += 1
        oldest = mine[-kept] if len(mine) >= kept else 0
        others = [mark for mark in self.checkpoints.marks() if mark[0] not in mine or mark[1] != chain.tip_at(mark[0])]
        for rounds, tip in [(rounds, chain.tip_at(rounds)) for rounds in mine[:-kept]] + others[:-OTHERS_KEPT]:
            self.checkpoints.remove(rounds, tip)
        self.results.drop_before(oldest)
        self.votes.drop_before(min(oldest, final))
