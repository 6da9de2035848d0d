"""A task group starts tasks while its block runs, and refuses them from then on."""

from __future__ import annotations

import trio
import trio.testing

from protocol.transport.task_group import TaskGroup


async def note(into: list[int]) -> None:
    into.append(1)


async def test_a_group_whose_block_has_ended_refuses_tasks_before_its_nursery_is_left() -> None:
    """Both between the end of the block and its last task, and between the closing and the code after the block."""
    tasks, ran, answers = TaskGroup(), list[int](), list[bool]()
    assert not tasks.start(note, ran)
    last_may_end, left = trio.Event(), False

    async def last() -> None:
        await last_may_end.wait()

    class Closing(trio.abc.Instrument):
        def after_task_step(self, task: trio.lowlevel.Task) -> None:
            if not left:
                answers.append(tasks.start(note, ran))

    async def hold() -> None:
        async with tasks.open():
            assert tasks.start(last)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        assert not tasks.is_open
        watch = Closing()
        trio.lowlevel.add_instrument(watch)
        last_may_end.set()
        await trio.testing.wait_all_tasks_blocked()
        left = True
        trio.lowlevel.remove_instrument(watch)
    assert answers and not any(answers) and not ran


async def test_tasks_start_while_the_block_runs_even_if_it_is_being_cancelled() -> None:
    tasks, ran = TaskGroup(), list[int]()
    async with tasks.open() as nursery:
        nursery.cancel_scope.cancel()
        assert tasks.is_open and tasks.start(note, ran)
    assert ran == [1] and not tasks.is_open
