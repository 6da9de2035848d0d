"""A peer's data on disk about one run: records, branches, results, checkpoints, binding votes, and proofs.

    records/00000012            commit 12: record, index, certificate (canonical msgpack, behind its hash)
    branches/<slot>-00000012    commit 12 of a branch that is not our chain
    switch                      an unfinished exchange of our chain for a branch
    results/00000012-00-<root>  codec bytes of a result; on disk before we vote for it, so a round may have several
    checkpoints/00000012-<tip>  outer state after 12 rounds on this tip, and ….leaves with the hashes of its pieces
    votes/00000012-<tip>        the votes that bind this peer in the round on this tip
    votes/confirmed             the tips on which this peer has confirmed a provisional record
    evidence/<hash>             proofs that peers lied
    files/                      the run's files as blobs, in a run that has some
    rollouts/                   batches of rollouts as blobs, in a run of reinforcement learning
    rollouts/wealth             the wealth of the betting tests against rollout peers
    tasks/                      sets of tasks as blobs, with the statements about them and the counts
    reference/                  the weights with which a run's KL term compares, as blobs
    extension                   the organiser's newest extension of the run, signed
    chosen                      the record, named by an invitation, whose history this peer has switched to

Write, fsync, rename; then act.  A file that is torn or altered counts as absent and is moved out of the way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from threading import Lock
from types import MappingProxyType

from protocol.blobs.store import BlobStore
from protocol.chain.records import Chain, record_hash
from protocol.chain.results import CheckpointName, Checkpoints, Results
from protocol.disk import Disk, corrupt_name, read_guarded, read_slice, set_aside, write_guarded
from protocol.run.invitation import Anchor
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_ENVELOPE_BYTES, decode_body
from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit, VoterState

# ------------------------------------------------------------------------------------------------------------------------
# The proofs that peers lied, on disk under their hashes.


_NAME = re.compile(r"[0-9a-f]{64}")


class EvidenceFiles:
    """Proof files, whose contents this class does not read.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def save(self, name: Hash, raw: bytes) -> None:
        """Write a proof.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._folder / name.hex(), raw)

    def load(self, name: Hash) -> bytes | None:
        """Return a proof; None if it is not here."""
        return read_guarded(self._disk, self._folder / name.hex())

    def read(self, name: Hash, offset: int, length: int) -> bytes | None:
        """Return bytes [offset, offset + length) of a proof; None if it is not here.

        The bytes are not checked: a peer that asks for a proof compares the whole proof with its name.
        """
        return read_slice(self._folder / name.hex(), offset, length)

    def remove(self, name: Hash) -> None:
        """Forget a proof."""
        self._disk.remove(self._folder / name.hex())

    def names(self) -> list[Hash]:
        """Return the names of all proofs that are here."""
        names = sorted(path.name for path in self._folder.iterdir())
        return [Hash(bytes.fromhex(name)) for name in names if _NAME.fullmatch(name)]

    def size_bytes(self) -> int:
        """Return the total size of the proofs in bytes."""
        return sum(path.stat().st_size for path in self._folder.iterdir())


# ------------------------------------------------------------------------------------------------------------------------
# The votes that bind this peer at each tip, on disk: a restarted peer must not contradict them.


MOST_CONFIRMED = 1 << 20
"""Most records that are confirmed and not final; more would be years of rounds without a quorum."""
CONFIRMED_BYTES = 8 + 32 + 32
_VOTES_NAME = re.compile(r"(\d{8})-[0-9a-f]{64}")


class VoteFiles:
    """Vote files: one encoded `VoterState` per tip.  Blocking.

    A tip's file outlives the branch that the tip is on: a peer that returns to the tip is still bound by its votes there.
    `confirmed` holds the provisional records that we have confirmed (`protocol.chain.finality`).
    """

    _index: Mapping[tuple[int, Hash], Hash] = MappingProxyType({})
    _indexed: frozenset[tuple[int, Hash, Hash]] | None = None

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder
        self._confirmed_at = folder / "confirmed"
        self._confirmed: frozenset[tuple[int, Hash, Hash]] | None = None
        self._confirming = Lock()
        """Held while the confirmed records change: votes are cast in one thread, and old files are removed in another."""

    def save(self, round: int, tip: Hash, raw: bytes) -> None:
        """Replace the votes for the round on this tip; durable on return.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._path(round, tip), raw)

    def load(self, round: int, tip: Hash) -> bytes | None:
        """Return the stored votes for the round on this tip; None if there are none."""
        return read_guarded(self._disk, self._path(round, tip))

    def has_lost(self, round: int, tip: Hash) -> bool:
        """Return True if a file for the round on this tip exists or was set aside; call this if `load` returned None."""
        path = self._path(round, tip)
        return path.exists() or corrupt_name(path).exists()

    def confirm(self, records: Collection[tuple[int, Hash, Hash]]) -> None:
        """Note that we confirm these records of our chain; durable on return.  Raises `StoreFailed`.

        records: each with its round, the tip on which it stands, and its hash.  From now on we make no other statement at
        these tips as a voter, and confirm no other record there.
        """
        with self._confirming:
            if new := set(records) - self.confirmed():
                entries = sorted([*self.confirmed(), *new])[-MOST_CONFIRMED:]
                raw = b"".join(round.to_bytes(8) + tip + record for round, tip, record in entries)
                write_guarded(self._disk, self._confirmed_at, raw)
                self._confirmed = frozenset(entries)

    def confirmed(self) -> frozenset[tuple[int, Hash, Hash]]:
        """Return the records that we have confirmed: the round, the tip on which the record stands, and the record."""
        if self._confirmed is None:
            raw = read_guarded(self._disk, self._confirmed_at) or b""
            parts = (raw[at : at + CONFIRMED_BYTES] for at in range(0, len(raw), CONFIRMED_BYTES))
            self._confirmed = frozenset((int.from_bytes(part[:8]), Hash(part[8:40]), Hash(part[40:])) for part in parts)
        return self._confirmed

    def confirmed_on(self, round: int, tip: Hash) -> Hash | None:
        """Return the record that we have confirmed on `tip`; None if there is none."""
        entries = self.confirmed()
        if self._indexed is not entries:
            self._index, self._indexed = {(at, on): record for at, on, record in entries}, entries
        return self._index.get((round, tip))

    def is_locked_on(self, round: int, tip: Hash, record: Hash) -> bool:
        """Return True if we are locked on this record on `tip` by all electors."""
        kept = read_voter_state(self.load(round, tip))
        return kept is not None and kept.lock is not None and record_hash(kept.lock.record) == record

    def is_bound_elsewhere(self, round: int, tip: Hash, record: Hash) -> bool:
        """Return True if we have confirmed another record on `tip` than this one, or are locked on one by all electors."""
        if (confirmed := self.confirmed_on(round, tip)) is not None:
            return confirmed != record
        return is_locked_elsewhere(read_voter_state(self.load(round, tip)), record)

    @property
    def has_lost_confirmed(self) -> bool:
        """True if the file with the confirmed tips is damaged, so that we do not know what binds us."""
        self.confirmed()
        return corrupt_name(self._confirmed_at).exists()

    def forget_lost(self) -> None:
        """Remove the damaged file with the confirmed records, because it binds us no longer."""
        self._disk.remove(corrupt_name(self._confirmed_at))

    def any(self) -> bool:
        """Return True if this peer has ever voted."""
        return any(_VOTES_NAME.fullmatch(path.name) for path in self._folder.iterdir())

    def drop_before(self, round: int) -> None:
        """Remove the votes for rounds before `round`: their records are final, so no further votes on them are needed."""
        for path in self._folder.iterdir():
            named = _VOTES_NAME.fullmatch(path.name)
            if named and int(named[1]) < round:
                self._disk.remove(path)
        with self._confirming:
            if (entries := self.confirmed()) and all(known < round for known, *_ in entries):
                self._disk.remove(self._confirmed_at)
                self._confirmed = frozenset()

    def _path(self, round: int, tip: Hash) -> Path:
        return self._folder / f"{round:08d}-{tip.hex()}"


MAX_VOTER_STATE_BYTES = 3 * MAX_ENVELOPE_BYTES
"""Size limit of a `VoterState`: it holds two locks, each as large as a record proposal."""


def read_voter_state(raw: bytes | None) -> VoterState | None:
    """Return the stored votes that bind us; None if there are none, or if they are unreadable."""
    if raw is None:
        return None
    try:
        return decode_body(VoterState, raw, max_bytes=MAX_VOTER_STATE_BYTES)
    except Malformed:
        return None


def is_locked_elsewhere(kept: VoterState | None, record: Hash) -> bool:
    """Return True if our votes at a tip hold a lock of all electors on another record than `record`, which stands there."""
    return kept is not None and kept.lock is not None and record_hash(kept.lock.record) != record


# ------------------------------------------------------------------------------------------------------------------------
# The committed records of a run on disk, each with its index and certificate.


MAX_RECORD_BYTES = 4 << 20


def _read_commit(disk: Disk, path: Path) -> Commit | None:
    """Return the commit in a file; None if it is missing or unreadable."""
    raw = read_guarded(disk, path)
    try:
        return decode_body(Commit, raw, max_bytes=MAX_RECORD_BYTES) if raw is not None else None
    except Malformed:
        set_aside(disk, path)
        return None


class Records:
    """The records of a run, one file per round.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def length(self) -> int:
        """Return the number of consecutive rounds, from 0 on, that have a record."""
        rounds = {int(path.name) for path in self._folder.iterdir() if path.name.isdigit()}
        length = 0
        while length in rounds:
            length += 1
        return length

    def write(self, commit: Commit) -> None:
        """Write the record of a round, or replace it to change its certificate.  Raises `StoreFailed`."""
        write_guarded(self._disk, self._path(commit.record.round), commit.encode())

    def at(self, round: int) -> Commit | None:
        """Return the commit of a round; None if it is missing or unreadable."""
        return _read_commit(self._disk, self._path(round))

    def encoded_at(self, round: int) -> bytes | None:
        """Return the commit of a round as it was encoded; None if it is missing or damaged."""
        return read_guarded(self._disk, self._path(round))

    def set_aside_from(self, length: int) -> None:
        """Move the records of rounds `length` and above out of the way, the newest first.  Raises `StoreFailed`."""
        for path in sorted(self._folder.iterdir(), reverse=True):
            if path.name.isdigit() and int(path.name) >= length:
                set_aside(self._disk, path)

    def lost_from(self, length: int) -> int:
        """Return the number of records of rounds `length` and above that were set aside."""
        names = [path.name.partition(".") for path in self._folder.iterdir()]
        return sum(round.isdigit() and end == "corrupt" and int(round) >= length for round, _, end in names)

    def _path(self, round: int) -> Path:
        return self._folder / f"{round:08}"


# ------------------------------------------------------------------------------------------------------------------------
# Records of branches on disk beside our chain: branches that are being fetched, or that were abandoned and are kept for a
# while.


_BRANCH_NAME = re.compile(r"([0-9A-Za-z]+)-(\d{8})")


class BranchFiles:
    """Records of branches, one file each; one slot, named by a word, holds one branch.  Blocking."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk, self._folder = disk, folder

    def append(self, slot: str, commit: Commit) -> int:
        """Write a record and return its size in bytes.  Raises `StoreFailed`."""
        raw = commit.encode()
        write_guarded(self._disk, self.path(slot, commit.record.round), raw)
        return len(raw)

    def at(self, slot: str, round: int) -> Commit | None:
        """Return the record of a round; None if it is missing or unreadable."""
        return _read_commit(self._disk, self.path(slot, round))

    def slots(self) -> dict[str, list[int]]:
        """Return the rounds for which each slot has a record, ascending."""
        found: dict[str, list[int]] = {}
        for path in sorted(self._folder.iterdir()):
            named = _BRANCH_NAME.fullmatch(path.name)
            if named:
                found.setdefault(named[1], []).append(int(named[2]))
        return found

    def size_bytes(self, slot: str) -> int:
        """Return the size of all files of a slot."""
        return sum(path.stat().st_size for path in self._folder.glob(f"{slot}-*"))

    def drop(self, slot: str) -> None:
        """Remove the records of a slot."""
        for path in sorted(self._folder.glob(f"{slot}-*"), reverse=True):
            self._disk.remove(path)

    def path(self, slot: str, round: int) -> Path:
        """Return the path of a record."""
        return self._folder / f"{slot}-{round:08}"


# ------------------------------------------------------------------------------------------------------------------------


CHECKPOINTS_KEPT = 2
"""Number of newest checkpoints of our chain to keep.  If other peers are fetching the checkpoint before these, it stays
until the next is written."""
OTHERS_KEPT = 2
"""Number of checkpoints of branches to keep: one of a branch about to be adopted, and one of the branch abandoned last."""
JOURNAL_BYTES = 1024


class Store:
    """All files of one run, in a folder of its own.  Blocking; call it in worker threads.

    Files left before a restart are first made durable, because this peer may have died before they were.
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
        self.results, self.checkpoints = Results(self.disk, results), Checkpoints(self.disk, checkpoints)
        self.results.load()
        self.checkpoints.load()
        self.votes = VoteFiles(self.disk, votes)
        self.evidence = EvidenceFiles(self.disk, evidence)
        self.rollouts = BlobStore(self.disk, root / "rollouts")
        self.files = BlobStore(self.disk, root / "files")
        self.reference = BlobStore(self.disk, root / "reference")
        self.tasks = BlobStore(self.disk, root / "tasks")
        self._records, self._branches, self._journal = records, branches, root / "switch"
        self._chosen, self._extension = root / "chosen", root / "extension"
        begun = read_guarded(self.disk, self._journal)
        if begun is not None:
            self._carry_out(*canonical.decode(begun, max_bytes=JOURNAL_BYTES))

    def choose(self, anchor: Anchor) -> None:
        """Make the history through this record ours, also after a restart.  Raises `StoreFailed`."""
        if self.chosen() != anchor:
            write_guarded(self.disk, self._chosen, anchor.encode())

    def chosen(self) -> Anchor | None:
        """Return the record whose history we last switched to; None if there is none."""
        raw = read_guarded(self.disk, self._chosen)
        return decode_body(Anchor, raw) if raw is not None else None

    def keep_extension(self, raw: bytes) -> None:
        """Replace the organiser's extension of the run.  Raises `StoreFailed`."""
        write_guarded(self.disk, self._extension, raw)

    def extension(self) -> bytes | None:
        """Return the stored extension, the organiser's newest that we know; None if there is none."""
        return read_guarded(self.disk, self._extension)

    def switch(self, common: int, slot: str, length: int, kept: str) -> None:
        """Replace our records from `common` on by the records in `slot` up to `length`; ours move to the slot `kept`.

        Whenever this process dies, one of the two chains is whole after the next start.  Raises `StoreFailed`.
        """
        assert slot != kept
        self.branches.drop(kept)
        self.disk.settle(self._branches)
        write_guarded(self.disk, self._journal, canonical.encode([common, slot, length, kept]))
        self._carry_out(common, slot, length, kept)

    def _carry_out(self, common: int, slot: str, length: int, kept: str) -> None:
        """Move the files not moved yet.  While a branch's record is still in its slot, the record of that round is ours."""
        for path in sorted(self._records.iterdir(), reverse=True):
            if not path.name.isdigit() or int(path.name) < common:
                continue
            round, target = int(path.name), self.branches.path(kept, int(path.name))
            waits = self.branches.path(slot, round).exists()
            if (round >= length or waits) and not target.exists():
                self.disk.move(path, target)
        self.disk.settle(self._branches)
        for round in range(common, length):
            path = self.branches.path(slot, round)
            if path.exists():
                self.disk.move(path, self._records / f"{round:08}")
        self.disk.settle(self._records)
        self.disk.remove(self._journal)
        self.disk.settle(self.root)
        if slot:
            self.branches.drop(slot)

    def make_room(self, chain: Chain, *, keeps_first: bool = False) -> None:
        """Remove all but `CHECKPOINTS_KEPT` checkpoints of our chain, even if other peers read them, to make room.

        keeps_first: True to keep the checkpoint after 0 rounds as well.
        """
        for rounds in self.checkpoints.of(chain)[:-CHECKPOINTS_KEPT]:
            if rounds or not keeps_first:
                self.checkpoints.drop(CheckpointName(rounds, chain.tip_at(rounds)))

    def prune(self, chain: Chain, final: int, *, keeps_first: bool = False) -> None:
        """Keep the newest checkpoints of our chain, all results since the oldest of them, and our binding votes there.

        final: rounds that are final.  keeps_first: True to keep the checkpoint after 0 rounds as well.
        """
        ours = [CheckpointName(rounds, chain.tip_at(rounds)) for rounds in self.checkpoints.of(chain)]
        others, kept = sorted(self.checkpoints.sizes().keys() - {*ours}), CHECKPOINTS_KEPT
        if len(ours) > kept and self.checkpoints.was_read(ours[-kept - 1], ours[-kept].rounds):
            kept += 1
        for name in ours[:-kept] + others[:-OTHERS_KEPT]:
            if name.rounds or not keeps_first:
                self.checkpoints.drop(name)
        oldest = ours[-kept].rounds if len(ours) >= kept else 0
        self.results.drop_before(oldest)
        self.votes.drop_before(min(oldest, final))
