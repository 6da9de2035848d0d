"""What only the founder had: copied to its friends, read by them without it, and read once when it comes back late."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from protocol.chain.base import round_settings
from protocol.chain.history import History
from protocol.chain.leases import RowRange, lease_terms, stretches_in
from protocol.chain.outer_state import bf16
from protocol.chain.store import Store
from protocol.events import events as ev
from protocol.events.status import WhyIdle
from protocol.formats.model import ModelConfig
from protocol.run.manifest import open_manifest
from protocol.wire.identity import PeerId
from tests.e2e.swarm import ROLLOUT_RUN, Peer, Swarm
from tests.e2e.test_block_sources import run_folder
from tests.e2e.test_returning import asleep
from tests.e2e.test_tasks import TASKS
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

RUN = """
name = "copies"
total_rounds = {rounds}
[model]
dim = 16
layers = 1
heads = 1
kv_heads = 1
ffn = 32
[data]
from = "corpus"
epochs = {epochs}
sequence_length = 256
sequences_per_step = 4
[inner]
lr = 1e-3
warmup_steps = 10
[rounds]
inner_steps = 60
min_members = 2
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
PREFERENCES = """
name = "preferences"
total_rounds = 1000
[model]
from = "folder"
[data]
format = "preference"
from = "pairs.jsonl"
sequence_length = 64
sequences_per_step = 4
held_out_percent = 10
[inner]
lr = 1e-3
warmup_steps = 1
[rounds]
inner_steps = 5
grace_s = 3.0
eviction_s = 8.0
stall_s = 4.0
"""
BLOCK = 1 << 14
TOGETHER = 4
"""Rounds of everybody before the founder goes."""
FRIENDS = ("friend", "cousin", "aunt")


def write_corpus(swarm: Swarm, size: int) -> None:
    letters = np.random.default_rng(0).integers(ord("a"), ord("z"), (size // 1000, 1000), np.uint8, endpoint=True)
    np.save(swarm.folder / "letters.npy", letters)
    words = ("data", "import", str(swarm.folder / "corpus"), f"letters={swarm.folder / 'letters.npy'}")
    swarm.command(swarm.place("organiser"), *words, "--tokenizer", "bytes", "--block", str(BLOCK))


def write_pairs_and_folder(tmp_path: Path) -> None:
    """Preferences, and a folder of weights to begin with, as `PREFERENCES` names them."""
    pairs = [{"prompt": f"Is {number} odd?", "chosen": "I will look.", "rejected": "Who asks?"} for number in range(300)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps({**pair, "id": at}) + "\n" for at, pair in enumerate(pairs)))
    config = ModelConfig(
        vocab=256, dim=32, layers=2, heads=2, kv_heads=2, ffn=64, rope_base=10_000.0, norm_eps=1e-5, tied=True
    )
    (tmp_path / "folder").mkdir()
    write_folder(tmp_path / "folder", config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=128, eos=None)


def copies(peer: Peer, field: str) -> float:
    """A share of the data, as a peer shows it; 1 before it knows."""
    told = peer.status().get("copies") or {}
    return float(told[field]) / told["total_bytes"] if told.get("answered", 0) > 1 else 1.0


def rows_consumed(swarm: Swarm, peer: Peer) -> tuple[list[RowRange], int]:
    """The rows that the records of a peer's chain consumed, one range after the other as they were read, and all rows."""
    signed = open_manifest(swarm.manifest.read_bytes())
    manifest = signed.manifest
    history = History(round_settings(signed.run, manifest), Store(run_folder(peer)))
    rows, roster = list[RowRange](), history.roster_at(0)
    for round in range(history.length):
        commit = history.commit_at(round)
        base, roster = history.base_on(round, history.tip_at(round), roster), roster.after(commit)
        for member in commit.record.members:
            if member.peer in roster.contributors and base.count_leased(manifest, PeerId(member.peer)):
                rows += base.rows_read(manifest, PeerId(member.peer), member.steps, stretches_in(member.stretches))
    return rows, lease_terms(manifest).limit or 0


def in_order(rows: list[RowRange]) -> Iterator[int]:
    for start, end in sorted(rows):
        yield from range(start, end)


@pytest.mark.slow
def test_once_there_are_copies_the_founder_sleeps_or_dies_for_good_and_the_others_read_on(tmp_path: Path) -> None:
    """The founder of an open run with a corpus of its own; without copies the others would wait for its blocks."""
    with Swarm(tmp_path, RUN.format(rounds=10_000, epochs=50)) as swarm:
        write_corpus(swarm, 2_000_000)
        swarm.create_run()
        organiser, *friends = peers = [swarm.peer(name).start() for name in ("organiser", *FRIENDS)]
        swarm.whole(*peers)
        swarm.until("copies of everything", lambda: all(copies(peer, "short_bytes") == 0 for peer in friends))
        assert all(peer.status()["block_bytes"]["copy"] > 0 for peer in friends)
        with asleep([organiser]):
            start = swarm.newest()
            swarm.until("rounds without it", lambda: min(peer.committed for peer in friends) >= start + 12)
            assert not any(event.why_idle == WhyIdle.FETCHING_DATA for peer in friends for event in late(peer, start))
        swarm.equal(swarm.whole(*peers), *peers)
        organiser.kill()
        newcomer, start = swarm.peer("newcomer").start(), swarm.newest()
        swarm.whole(*friends, newcomer)
        swarm.until("more rounds", lambda: all(peer.committed >= start + 8 for peer in (*friends, newcomer)))
        swarm.until("the newcomer's copies", lambda: copies(newcomer, "short_bytes") == 0)
        organiser.start()
        swarm.equal(swarm.whole(*swarm.peers), *swarm.peers)
        assert not any(peer.heard(ev.RolledBack) for peer in swarm.peers), "nobody has lost a round"


@pytest.mark.slow
def test_rows_that_only_the_founder_has_are_read_when_it_comes_back_and_nobody_waits_for_them(tmp_path: Path) -> None:
    with Swarm(tmp_path, RUN.format(rounds=10_000, epochs=1)) as swarm:
        write_corpus(swarm, 3_000_000)
        swarm.create_run()
        organiser = swarm.peer("organiser").start()
        friends = [swarm.peer(name).start("--keep-blocks", "25") for name in FRIENDS]
        swarm.whole(organiser, *friends)
        swarm.until("copies of a third", lambda: copies(friends[0], "lone_bytes") < 0.66)
        swarm.until("rounds of everybody", lambda: organiser.committed >= TOGETHER)
        organiser.kill()
        swarm.until("the loss to be known", lambda: 0.05 < copies(friends[0], "missing_bytes") < 0.9)
        lost, killed_at = copies(friends[0], "missing_bytes"), swarm.newest()
        print(f"{100 * lost:.0f} % of the data are at nobody after {killed_at} rounds")
        swarm.until("rounds without it", lambda: swarm.newest() >= killed_at + 4)
        swarm.equal(killed_at + 4, *friends)
        waiting = [peer.status()["why_detail"] for peer in friends]
        print(swarm.newest(), waiting)
        organiser.start()
        swarm.until(
            "the end of the data", lambda: all(peer.notices(ev.NoticeCode.RUN_ENDED) for peer in (organiser, *friends))
        )
        swarm.equal(swarm.newest(), organiser, *friends)
        for peer in (organiser, *friends):
            assert peer.leave() == 0
        rows, limit = rows_consumed(swarm, friends[0])
        assert [*in_order(rows)] == [*range(limit)], "each row is read once"


@pytest.mark.slow
def test_weights_that_a_run_began_with_outlive_the_founder_and_newcomers_learn_from_them(tmp_path: Path) -> None:
    """A folder of weights, preferences, and their reference: all that a newcomer needs without the founder."""
    write_pairs_and_folder(tmp_path)
    with Swarm.created(tmp_path, PREFERENCES) as swarm:
        organiser, *friends = peers = [swarm.peer(name).start() for name in ("organiser", *FRIENDS[:2])]
        seed = swarm.peer("seed").start("--role", "seed")
        swarm.whole(*peers)
        swarm.until("older checkpoints to go", lambda: organiser.committed >= 13)
        late = swarm.peer("late").start("--processes", "2")
        swarm.whole(*friends, late)
        initial = np.concatenate(list(WeightsFolder(tmp_path / "folder").values())).astype("<f4")
        assert (run_folder(late) / "initial.bf16").read_bytes() == bf16(initial.view(np.uint32)).tobytes()
        swarm.until("copies", lambda: all(copies(peer, "short_bytes") == 0 for peer in (*friends, late)))
        swarm.until("a copy at the seed", lambda: initial_checkpoint(seed).exists())
        losses, ready = ([*organiser.heard(kind)] for kind in (ev.EvalLoss, ev.ReadySent))
        assert losses[-1].loss < 0.5 * np.log(2), "the margin has risen: it is ln 2 where nothing was learnt"
        assert ready[-1].margin > max(0, ready[0].margin) and ready[-1].accuracy > 0.9
        organiser.kill()
        newcomer = swarm.peer("newcomer").start()
        rounds = swarm.whole(*friends, newcomer)
        assert initial_checkpoint(newcomer).exists()
        organiser.start()
        swarm.equal(swarm.whole(organiser, *friends, newcomer), organiser, *friends, newcomer)
        assert not any(event.to_round < rounds for peer in friends for event in peer.heard(ev.RolledBack))


def late(peer: Peer, round: int) -> list[ev.PhaseChanged]:
    """The changes of a peer's phase since it committed this round."""
    events = [each.event for each in list(peer.stamped)]
    at = next(n for n, event in enumerate(events) if isinstance(event, ev.RoundCommitted) and event.round >= round)
    return [event for event in events[at:] if isinstance(event, ev.PhaseChanged)]


def initial_checkpoint(peer: Peer) -> Path:
    """The state before the first round on a peer's disk."""
    folder = run_folder(peer)
    return next((path for path in folder.glob("checkpoints/00000000-*") if not path.suffix), folder / "none")


@pytest.mark.slow
def test_the_only_holder_hands_over_before_it_leaves(tmp_path: Path) -> None:
    with Swarm(tmp_path, RUN.format(rounds=10_000, epochs=50)) as swarm:
        write_corpus(swarm, 10_000_000)
        swarm.create_run()
        organiser, friend = swarm.peer("organiser").start("--max-up", "0.15Mbit"), swarm.peer("friend").start()
        swarm.whole(organiser, friend)
        swarm.until("a count at both", lambda: all(copies(peer, "lone_bytes") < 1 for peer in (organiser, friend)))
        swarm.command(organiser.folder, "config", "max_up", "--unset", "--now")
        said = swarm.command(organiser.folder, "leave")
        assert "handing over" in said and "that only this peer has" in said and organiser.wait() == 0
        swarm.until("the goodbye", lambda: any(gone.goodbye for gone in friend.heard(ev.PeerGone)))
        here = sum(path.stat().st_size for path in run_folder(friend).glob("blocks/*/[0-9]*"))
        whole = sum(path.stat().st_size for path in (tmp_path / "corpus" / "shards").glob("*.shard"))
        assert here == whole, "the friend has everything now"


@pytest.mark.slow
def test_tasks_and_reference_weights_of_a_run_with_rollouts_outlive_the_founder(tmp_path: Path) -> None:
    """A newcomer trains after the founder is gone: the others have the file of tasks and the weights of the KL term."""
    (tmp_path / "letters.jsonl").write_text("\n".join(map(json.dumps, TASKS)))
    run = ROLLOUT_RUN.replace('"sort"', "'jsonl(path=\"letters.jsonl\")'") + "kl_weight = 0.5\ndrop_zero_advantage = false\n"
    with Swarm.created(tmp_path, run) as swarm:
        organiser, friend = (swarm.peer(name).start("--role", "trainer") for name in ("organiser", "friend"))
        writer, validator = (swarm.peer(role).start("--role", role) for role in ("rollout", "validator"))
        swarm.until("versions of rollouts", lambda: all(peer.heard(ev.RolloutsUsed) for peer in (organiser, friend)))
        swarm.until("copies", lambda: copies(friend, "short_bytes") == 0)
        swarm.whole(friend, organiser)  # the members of the last record vote, and the friend knows that record
        organiser.kill()
        newcomer = swarm.peer("newcomer").start("--role", "trainer")
        others = (friend, newcomer, writer, validator)
        swarm.until("the newcomer to learn from rollouts", lambda: used(newcomer))
        assert all(event.kl is not None for event in used(newcomer)), "it compares with the weights that the run began with"
        assert files_of_tasks(newcomer) == files_of_tasks(friend) != {}
        organiser.start("--role", "trainer")
        count = len(used(organiser))
        swarm.until("the founder to learn again", lambda: len(used(organiser)) > count)
        swarm.equal(swarm.whole(organiser, friend, newcomer), organiser, *others)
        lost = {
            peer.name: [(e.at, e.event) for e in peer.stamped if isinstance(e.event, ev.RolledBack)]
            for peer in (organiser, *others)
        }
        assert not any(lost.values()), lost


def used(peer: Peer) -> list[ev.RolloutsUsed]:
    """The rounds of a peer that learned from rollouts and were committed."""
    return [event for event in peer.heard(ev.RolloutsUsed) if event.round in peer.commits]


def files_of_tasks(peer: Peer) -> dict[str, bytes]:
    """The run's files on a peer's disk, by name."""
    return {path.name: path.read_bytes() for path in (run_folder(peer) / "files").rglob("*") if path.is_file()}
