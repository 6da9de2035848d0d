"""What a simulated peer holds: its tasks, its objects by class, the entries of its tables, its files.

Counted is what can be reached from its node and from the tasks of its process, and belongs to it alone: the wire, the
judge and whatever else the world has are left out.  All of it are counts, which the seed decides.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import trio
from pydantic import BaseModel
from trio.lowlevel import Task

from tests.simulation.processes import PROCESS, Process
from tests.simulation.seat import Seat
from tests.simulation.wire import Agenda, MemoryWire

OURS = ("protocol.", "kernels.")
THEIRS = ("tests.", "trio.")
"""Packages whose objects belong to the world."""
TABLES = (dict, list, set, deque)
FIXED = (tuple, frozenset)
"""Tables that cannot grow: counted where an attribute holds one, as that may be replaced by a larger one."""
LEAVES = (str, bytes, bytearray, memoryview, int, float, type, ModuleType, CodeType, BuiltinFunctionType)
SHARED = (MemoryWire, Agenda, Path, Task, trio.Nursery)
"""What belongs to the world, or has no tables of ours; nothing is followed through it."""

Census = Counter[str]
"""Counts by what is counted: "tasks", "object X", "entry X.y", "file f", "bytes f"."""


def census(seat: Seat) -> Census:
    """Of a peer that runs.  A file counts under the first part of its path."""
    assert seat.process is not None and seat.node is not None
    gc.collect()
    tasks = list(_tasks_of(seat.process))
    found = Census({"tasks": len(tasks)})
    _count(found, [seat.node, *(task.coro for task in tasks)])
    for path in seat.folder.rglob("*"):
        if path.is_file():
            place = path.relative_to(seat.folder).parts[0]
            found[f"file {place}"] += 1
            found[f"bytes {place}"] += path.stat().st_size
    return found


def _tasks_of(process: Process) -> Iterator[Task]:
    """All trio tasks that were started within this process."""
    root = trio.lowlevel.current_root_task()
    waiting = [root] if root is not None else []
    while waiting:
        task = waiting.pop()
        if task.context.get(PROCESS) is process:
            yield task
        waiting += [child for nursery in task.child_nurseries for child in nursery.child_tasks]


def _count(found: Census, roots: Iterable[Any]) -> None:
    """Go through all that is reached from the roots.  A table counts for the attribute through which it is reached."""
    seen: dict[int, Any] = {}
    waiting: list[tuple[Any, str, bool]] = [(root, "", False) for root in roots]
    while waiting:
        thing, holder, is_attribute = waiting.pop()
        if id(thing) in seen or thing is None or isinstance(thing, LEAVES) or not _is_its_own(thing):
            continue
        seen[id(thing)] = thing
        if type(thing).__module__.startswith(OURS):
            name = type(thing).__qualname__
            found[f"object {name}"] += 1
            waiting += [(inner, f"{name}.{attribute}", True) for attribute, inner in _attributes(thing)]
            continue
        if holder and isinstance(thing, (*TABLES, *FIXED) if is_attribute else TABLES):
            found[f"entry {holder}"] += len(thing)
        waiting += [(inner, holder, False) for inner in _reached_from(thing)]


def _is_its_own(thing: Any) -> bool:
    """Whether something may belong to one peer alone."""
    module = type(thing).__module__
    return not isinstance(thing, SHARED) and (not module.startswith(THEIRS) or module.startswith("trio._channel"))


def _reached_from(thing: Any) -> list[Any]:
    if isinstance(thing, FunctionType):  # not its module's names
        return [*(thing.__closure__ or ()), *(thing.__defaults__ or ())]
    return gc.get_referents(thing)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(thing, "__dict__", {}).items()
    for cls in () if isinstance(thing, BaseModel) else type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(thing, name):
                yield name, getattr(thing, name)
