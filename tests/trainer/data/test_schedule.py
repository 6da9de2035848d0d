"""Order of windows: pure, and complete in each epoch."""

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.rows import Permutation, WindowOrder


@given(seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 1000), size=st.integers(1, 700))
@settings(max_examples=60, deadline=None)
def test_permutation_is_a_bijection(seed: int, epoch: int, size: int) -> None:
    permutation = Permutation.of(seed, epoch, size)
    assert sorted(permutation(index) for index in range(size)) == list(range(size))


@given(seed=st.integers(0, 2**63 - 1), windows=st.integers(1, 200), epoch=st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_rows_of_an_epoch_read_each_window_once(seed: int, windows: int, epoch: int) -> None:
    order = WindowOrder(seed, windows)
    read = [order.window(epoch * windows + row) for row in range(windows)]
    assert sorted(read) == list(range(windows))


def test_epochs_have_different_orders() -> None:
    first, second = (Permutation.of(1, epoch, 1000) for epoch in (0, 1))
    assert sum(first(index) == second(index) for index in range(1000)) < 20


def test_order_never_changes() -> None:
    order, first = WindowOrder(seed=5, windows=19_000), (3 * 128 + 17) * 80
    assert [order.window(first + row) for row in range(4)] == [9074, 754, 15177, 2643]
