"""What a peer told a viewer, kept in a file.  `python -m tests.tui.recording FOLDER SECONDS FILE` makes one.

A line is a map with one key: "found", "status", "curves", "ledger", "event" or "stopped".
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from peer.control.client import ControlError, Stamped
from peer.control.curves import RunCurves
from protocol.events.status import PeerStatus
from tui.contributions import Contributions
from tui.feed import Feed, PeerFound, Stopped, Told

STATUS_EVERY = 3


def read(path: Path) -> list[Told]:
    """What was recorded, in its order."""
    told: list[Told] = []
    for line in path.read_text().splitlines():
        match json.loads(line):
            case {"found": _}:
                told.append(PeerFound())
            case {"status": fields}:
                told.append(PeerStatus.from_fields(fields))
            case {"event": fields}:
                told.append(Stamped.from_fields(fields))
            case {"curves": fields}:
                told.append(RunCurves.from_fields(fields))
            case {"ledger": fields}:
                told.append(Contributions.from_fields(fields))
            case {"stopped": reason}:
                told.append(Stopped(reason))
    return told


class Recorded:
    """A source that tells all of `told` at once, and remembers what it is asked.

    refusal: the answer to each question.  answers: else, by command; nothing where there is none.
    """

    def __init__(self, told: list[Told], refusal: str = "") -> None:
        self.told, self.refusal = told, refusal
        self.answers: dict[str, dict[str, object]] = {}
        self.asked: list[tuple[str, dict[str, object]]] = []
        self.closed = False

    def start(self) -> None:
        pass

    def take(self) -> list[Told]:
        told, self.told = self.told, []
        return told

    def ask(self, command: str, **fields: object) -> dict[str, object]:
        self.asked.append((command, fields))
        if self.refusal:
            raise ControlError(self.refusal)
        return self.answers.get(command, {})

    def close(self) -> None:
        self.closed = True


def line_of(told: Told) -> str:
    """As it is kept."""
    match told:
        case PeerFound():
            return json.dumps({"found": True})
        case Stopped(reason):
            return json.dumps({"stopped": reason})
        case PeerStatus():
            return json.dumps({"status": told.to_fields()})
        case RunCurves():
            return json.dumps({"curves": told.to_fields()})
        case Contributions():
            return json.dumps({"ledger": told.to_fields()})
        case Stamped():
            return json.dumps({"event": told.to_fields()})


def main() -> int:
    folder, seconds, path = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    feed, end, statuses = Feed(folder), time.monotonic() + seconds, 0
    feed.start()
    with path.open("w") as file:
        while time.monotonic() < end:
            time.sleep(0.2)
            for told in feed.take():
                statuses += isinstance(told, PeerStatus)
                if not isinstance(told, PeerStatus) or statuses % STATUS_EVERY == 1:
                    file.write(line_of(told) + "\n")
    feed.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
