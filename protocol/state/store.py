"""What a peer stores about one run: records, results, checkpoints, its last promise, and proofs.

    records/00000012           commit 12: record, index, certificate (canonical msgpack, behind its hash)
    results/00000012-<root>    codec bytes of a result; on disk before it is voted for, so there may be several of a round
    checkpoints/00000012       outer state after 12 rounds, and 00000012.leaves with the hashes of its pieces
    votes/00000012-<tip>       what binds this peer in the round on this tip
    evidence/<hash>            proofs that peers lied

Write, fsync, rename; then act.  A file that is torn or altered counts as absent and is moved out of the way.
"""

from __future__ import annotations

from pathlib import Path

from protocol.state.checkpoints import Checkpoints
from protocol.state.disk import Disk
from protocol.state.evidence_files import EvidenceFiles
from protocol.state.records import Records
from protocol.state.results import Results
from protocol.state.vote_files import VoteFiles

CHECKPOINTS_KEPT = 2


class Store:
    """Rooted at a folder of its own.  Blocking; call it in worker threads.

    What an earlier life left is made lasting before anything is built on it: that life may have died before it was.
    """

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        self.root, self.disk = root, disk or Disk()
        records, results, checkpoints = root / "records", root / "results", root / "checkpoints"
        evidence, votes = root / "evidence", root / "votes"
        for folder in (records, results, checkpoints, evidence, votes):
            folder.mkdir(parents=True, exist_ok=True)
        for left_over in [*results.glob(".part-*"), *root.glob("**/.*.new")]:
            self.disk.remove(left_over)
        for folder in (root, records, results, checkpoints, evidence, votes):
            self.disk.settle(folder)
        self.records = Records(self.disk, records)
        self.results = Results(self.disk, results)
        self.checkpoints = Checkpoints(self.disk, checkpoints)
        self.votes = VoteFiles(self.disk, votes)
        self.evidence = EvidenceFiles(self.disk, evidence)

    def truncate(self, length: int) -> None:
        """Drop the records of rounds `length` and above, and the checkpoints that stand on them."""
        self.records.truncate(length)
        for rounds in self.checkpoints.rounds():
            if rounds > length:
                self.checkpoints.remove(rounds)

    def prune(self) -> None:
        """Leave the newest checkpoints, and every result since the oldest of those."""
        rounds = self.checkpoints.rounds()
        for old in rounds[:-CHECKPOINTS_KEPT]:
            self.checkpoints.remove(old)
        if len(rounds) >= CHECKPOINTS_KEPT:
            self.results.drop_before(rounds[-CHECKPOINTS_KEPT])
