"""Pauses double up to a limit; memories evict their oldest entries, and first those that give way."""

from __future__ import annotations

from math import inf

from protocol.bounds import Backoff, Backoffs, BoundedDict


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(2.0, 7.0)
    assert backoff.until == -inf
    assert [backoff.failed(now) for now in (0.0, 10.0, 20.0, 30.0)] == [2.0, 4.0, 7.0, 7.0]
    assert backoff.until == 37.0 and backoff.next_s == 7.0
    backoff.reset()
    assert backoff.until == -inf and backoff.failed() == 2.0


def test_the_oldest_entry_is_evicted_and_one_that_is_set_again_keeps_its_age() -> None:
    memory = BoundedDict[str, int](2)
    memory["a"], memory["b"] = 1, 2
    memory["a"] = 3
    memory["c"] = 4
    assert dict(memory) == {"b": 2, "c": 4}
    memory.renew("b", 5)
    memory["d"] = 6
    assert [*memory.items()] == [("b", 5), ("d", 6)]


def test_every_way_to_set_an_entry_keeps_to_the_limit() -> None:
    memory = BoundedDict[int, int](3)
    memory.update({number: number for number in range(9)})
    assert memory.setdefault(9, 9) == 9 and [*memory] == [7, 8, 9]
    assert memory.pop(7) == 7 and memory.pop(7, None) is None and len(memory) == 2


def test_strangers_give_way_to_members_and_to_newer_strangers() -> None:
    memory = BoundedDict[str, None](3, lambda key, value: key.islower())
    for key in ("A", "x", "B", "y"):
        memory[key] = None
    assert [*memory] == ["A", "B", "y"]
    memory["C"] = None
    memory["z"] = None
    assert [*memory] == ["A", "B", "C"], "a stranger has no place beside members only"
    memory["D"] = None
    assert [*memory] == ["B", "C", "D"]


def test_each_key_waits_for_itself_and_the_one_that_failed_longest_ago_is_forgotten() -> None:
    waits = Backoffs[str](1.0, 4.0, 2)
    waits.failed("a", 0.0)
    assert not waits.is_over("a", 0.9) and waits.is_over("a", 1.0) and waits.is_over("b", 0.0)
    waits.failed("a", 1.0)
    assert not waits.is_over("a", 2.9), "twice as long"
    waits.failed("b", 1.0)
    waits.failed("a", 3.0)
    waits.failed("c", 3.0)
    assert [*waits] == ["a", "c"]
    del waits["a"]
    assert waits.is_over("a", 0.0)
