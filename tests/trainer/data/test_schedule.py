"""Assignment of windows: pure, disjoint, complete."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.rows import LaneSchedule, Permutation


@given(seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000), size=st.integers(1, 700))
@settings(max_examples=60, deadline=None)
def test_permutation_is_a_bijection(seed: int, epoch: int, size: int) -> None:
    permutation = Permutation.of(seed, epoch, size)
    assert sorted(permutation(index) for index in range(size)) == list(range(size))


@given(
    seed=st.integers(0, 2**63 - 1),
    lanes=st.integers(1, 6),
    windows_per_round=st.integers(1, 8),
    windows=st.integers(1, 200),
)
@settings(max_examples=60, deadline=None)
def test_no_two_lanes_share_a_window_within_an_epoch_and_none_is_left_out(
    seed: int, lanes: int, windows_per_round: int, windows: int
) -> None:
    schedule = LaneSchedule(seed, windows, lanes, windows_per_round)
    rounds = -(-windows // (lanes * windows_per_round))
    read = [
        schedule.window(round_number, lane, position)
        for round_number in range(rounds)
        for lane in range(lanes)
        for position in range(windows_per_round)
    ]
    assert sorted(read[:windows]) == list(range(windows))


def test_epochs_have_different_orders() -> None:
    first, second = (Permutation.of(1, epoch, 1000) for epoch in (0, 1))
    assert sum(first(index) == second(index) for index in range(1000)) < 20


def test_assignment_never_changes() -> None:
    schedule = LaneSchedule(seed=5, windows=19_000, lanes=128, windows_per_round=80)
    assert [schedule.window(3, 17, position) for position in range(4)] == [9074, 754, 15177, 2643]
