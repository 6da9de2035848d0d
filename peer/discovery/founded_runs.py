"""Runs founded twice: two computers that join the same run file found two runs, which wait for each other for ever.

Whoever founds a run tells its network so until the run has its first record, and hears of others: by a folder on this
computer, and by multicast DNS.  What is heard is anybody's word: it makes a sentence, bounded and escaped, and nothing else.

Multicast answers are read in a process of its own, which may use little memory: `python -m peer.discovery.founded_runs` gets
an announcement on standard input, announces it until that ends, and prints each other one that it hears, a line each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peer.discovery.rendezvous import is_peer_id
from peer.discovery.upnp import use_little_memory
from peer.files.held_file import HeldFile, read_held
from peer.formatting import clean, short
from peer.installation import child_environment

FOLDER = "founded"
SERVICE = "_mh-founded._tcp.local."
MAX_ENTRIES = 256
MAX_HEARD = 64
"""Announcements that one listener takes; whoever floods it keeps it from hearing more, and from nothing else."""
MAX_TOLD = 3
MAX_LINE_BYTES = 1024
MAX_NAME_CHARS = 64
DIGITS = 64
LOOK_UP_MS = 2000


@dataclass(frozen=True)
class Founded:
    """A run without records.  run: its ID.  file: a digest of its manifest without the organiser.  Both hexadecimal."""

    run: str
    organiser: str
    name: str
    file: str

    def to_bytes(self) -> bytes:
        """As it is announced."""
        return json.dumps(asdict(self)).encode()


def founded_in(raw: bytes) -> Founded | None:
    """The announcement in bytes that anybody may have written; None for anything else."""
    try:
        fields = json.loads(raw[:MAX_LINE_BYTES])
        found = Founded(*(fields[name] for name in ("run", "organiser", "name", "file")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    if not all(isinstance(each, str) for each in asdict(found).values()) or len(found.name) > MAX_NAME_CHARS:
        return None
    return found if _is_hash(found.run) and _is_hash(found.file) and is_peer_id(found.organiser) else None


class FoundedTwice:
    """Tells which of the runs that are heard look like `ours`: each once, and `MAX_TOLD` at most."""

    def __init__(self, ours: Founded) -> None:
        self._ours, self._told = ours, set[str]()

    def sentence(self, other: Founded) -> str:
        """What to tell of another run, with the remedy; empty for one that is like ours in nothing, or was told."""
        ours = self._ours
        same = "file" if other.file == ours.file else "name" if other.name == ours.name else ""
        if other.run == ours.run or not same or other.run in self._told or len(self._told) >= MAX_TOLD:
            return ""
        self._told.add(other.run)
        return (
            f"{short(other.organiser)} on your network has founded another run with the same {same} ({clean(other.name)}), "
            "and the two never meet: to train together, one of you leaves and types `peer join INVITATION` with the "
            "invitation that `peer status` prints at the other"
        )


class Noticeboard:
    """The folder in which the founders of this computer announce their runs.  Methods raise OSError."""

    def __init__(self, runtime: Path, peer: str) -> None:
        self._file = HeldFile(runtime / FOLDER / peer)

    def announce(self, ours: Founded) -> None:
        """Say it, for as long as we live or until `withdraw`."""
        if not self._file.is_there:
            self._file.put(ours.to_bytes())

    def withdraw(self) -> None:
        """Say it no more."""
        self._file.remove()


def noticed(runtime: Path) -> list[Founded]:
    """What founders that run on this computer announce.  Raises OSError."""
    folder = runtime / FOLDER
    try:
        names = sorted(os.listdir(folder))[:MAX_ENTRIES]
    except FileNotFoundError:
        return []
    raw = [read_held(folder / name, MAX_LINE_BYTES) for name in names if is_peer_id(name)]
    return [found for each in raw if each is not None and (found := founded_in(each)) is not None]


class Multicast:
    """Announces and hears by multicast DNS, in a process of its own, from `start` until `close`.

    ours: None to listen only.
    """

    def __init__(self, ours: Founded | None) -> None:
        self._ours = ours
        self._process: subprocess.Popen[bytes] | None = None
        self.heard: list[Founded] = []

    def start(self) -> None:
        """Begin; a thread reads what is heard into `heard`.  Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "peer.discovery.founded_runs"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(os.environ),
            start_new_session=True,
        )
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write((self._ours.to_bytes() if self._ours is not None else b"") + b"\n")
        self._process.stdin.flush()
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None, "it is a pipe"
        while len(self.heard) < MAX_HEARD and (line := process.stdout.readline(MAX_LINE_BYTES)):
            found = founded_in(line)
            if found is not None:
                self.heard.append(found)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None


def _is_hash(text: str) -> bool:
    return len(text) == DIGITS and set(text) <= set("0123456789abcdef")


# -- in the process of its own ----------------------------------------------------------------------------------------


def founded_of(properties: dict[bytes, bytes | None]) -> Founded | None:
    """The announcement in a record's text fields; None for anything else."""
    told = {key.decode(errors="replace"): (value or b"").decode(errors="replace") for key, value in properties.items()}
    return founded_in(json.dumps({name: told.get(name) for name in ("run", "organiser", "name", "file")}).encode())


def serve(ours: Founded | None, tell: Callable[[Founded], None], until: Callable[[], object]) -> None:
    """Announce `ours`, and tell what others announce, while `until` blocks.  Raises what the library raises."""
    from zeroconf import ServiceInfo, ServiceListener, Zeroconf

    mine = f"{ours.organiser}.{SERVICE}" if ours is not None else ""

    class Listener(ServiceListener):
        def add_service(self, zc: Any, type_: str, name: str) -> None:
            info = zc.get_service_info(type_, name, timeout=LOOK_UP_MS) if name != mine else None
            found = founded_of(info.properties) if info is not None else None
            if found is not None:
                tell(found)

        def update_service(self, zc: Any, type_: str, name: str) -> None:
            self.add_service(zc, type_, name)

        def remove_service(self, zc: Any, type_: str, name: str) -> None:
            return

    zeroconf = Zeroconf()
    try:
        if ours is not None:
            server = f"{ours.organiser[-20:].lower()}-founder.local."
            nowhere = [bytes([127, 0, 0, 1])]  # a record is looked up whole only if it has an address
            info = ServiceInfo(SERVICE, mine, port=1, addresses=nowhere, properties=asdict(ours), server=server)
            zeroconf.register_service(info, cooperating_responders=True)
        zeroconf.add_service_listener(SERVICE, Listener())
        until()
    finally:
        zeroconf.close()


def _lines() -> Iterator[bytes]:
    while line := sys.stdin.buffer.readline(MAX_LINE_BYTES):
        yield line


def main() -> None:
    """Until standard input ends, or `MAX_HEARD` announcements were printed."""
    use_little_memory()
    lines = _lines()
    ours = founded_in(next(lines, b""))
    printed = 0

    def tell(found: Founded) -> None:
        nonlocal printed
        printed += 1
        if printed > MAX_HEARD:
            os._exit(0)
        sys.stdout.buffer.write(found.to_bytes() + b"\n")
        sys.stdout.buffer.flush()

    serve(ours, tell, lambda: list(lines))


if __name__ == "__main__":
    main()
