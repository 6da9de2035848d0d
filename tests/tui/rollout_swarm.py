"""Makes the recordings of a run with rollouts: `python -m tests.tui.rollout_swarm FOLDER`, FOLDER new.

A real trainer, rollout peer and validator are followed while they make versions; another rollout peer comes and cheats, and
is set aside.  What each of the three told is in `recorded/` afterwards, without the folders of this computer.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from peer.control.client import Stamped
from protocol.events import events as ev
from protocol.events.status import PeerStatus
from tests.e2e.swarm import ROLLOUT_RUN, Peer, Swarm
from tests.tui.recording import STATUS_EVERY, line_of
from tui.feed import Feed, PeerFound, Told

VERSIONS = 14
EASY = (
    ('environment = "sort"', 'environment = "count"'),
    ("inner_steps = 10", "inner_steps = 300"),
    ("batches_per_round = 2", "batches_per_round = 4"),
    ("warm_rounds = 1", "warm_rounds = 2"),
    ("[data]\n", '[data]\nfrom = "examples"\n'),
)
"""A model that is a minute old solves some of these."""
RECORDED = Path(__file__).parent / "recorded"


def record(folder: Path, path: Path, end: threading.Event) -> None:
    """Write what the peer of `folder` tells, until `end`."""
    feed, statuses, begun = Feed(folder), 0, False
    feed.start()
    with path.open("w") as file:
        while not end.wait(0.2):
            for told in feed.take():
                begun = begun or isinstance(told, PeerFound)
                statuses += isinstance(told, PeerStatus)
                wanted = not isinstance(told, PeerStatus) or statuses % STATUS_EVERY == 1
                if begun and wanted and not is_progress(told):
                    file.write(line_of(elsewhere(told)) + "\n")
    feed.close()


def is_progress(told: Told) -> bool:
    """Whether the recording does without it."""
    return isinstance(told, Stamped) and isinstance(told.event, ev.PROGRESS)


def elsewhere(told: Told) -> Told:
    """The same from another computer."""
    if isinstance(told, Stamped) and isinstance(told.event, ev.Started):
        return replace(told, event=replace(told.event, data_dir="/home/ann/.local/share/manyhands"))
    return told


def play(swarm: Swarm, trainer: Peer, writer: Peer, validator: Peer, liar: Peer) -> None:
    """What happens in the recordings."""
    trainer.start("--role", "trainer", "--name", "trainer")
    writer.start("--role", "rollout")
    validator.start("--role", "validator")
    swarm.until("some versions", lambda: len(trainer.heard(ev.RolloutsUsed)) >= VERSIONS, 1200)
    liar.program = ("tests.e2e.lying_writer",)
    liar.start("--role", "rollout")
    swarm.until("the liar to be set aside", lambda: trainer.heard(ev.RolloutPeerSetAside), 600)
    used = len(trainer.heard(ev.RolloutsUsed))
    swarm.until("two versions more", lambda: len(trainer.heard(ev.RolloutsUsed)) >= used + 2, 600)


def main() -> int:
    folder, end = Path(sys.argv[1]), threading.Event()
    folder.mkdir(parents=True)
    run = ROLLOUT_RUN
    for old, new in EASY:
        assert old in run
        run = run.replace(old, new)
    with Swarm(folder, run) as swarm:
        swarm.create_run()
        trainer, writer, validator, liar = map(swarm.peer, ("organiser", "writer", "validator", "other"))
        watched: dict[str, Peer] = {"trainer": trainer, "writer": writer, "validator": validator}
        threads = [
            threading.Thread(target=record, args=(peer.folder, RECORDED / f"rl_{name}.jsonl", end))
            for name, peer in watched.items()
        ]
        for thread in threads:
            thread.start()
        try:
            play(swarm, trainer, writer, validator, liar)
        finally:
            end.set()
            for thread in threads:
                thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
