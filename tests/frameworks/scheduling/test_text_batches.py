"""Texts of one request are cut into batches of like length."""

from hypothesis import given
from hypothesis import strategies as st

from frameworks.scheduling.text_batches import batches_by_length


@given(st.lists(st.integers(0, 512), max_size=200), st.integers(1, 40))
def test_each_text_is_in_one_full_batch_longest_first(lengths: list[int], max_batch_size: int) -> None:
    batches = batches_by_length(lengths, max_batch_size)
    order = [position for batch in batches for position in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == max_batch_size for batch in batches[:-1])
    assert all(1 <= len(batch) <= max_batch_size for batch in batches)


def test_ten_thousand_texts() -> None:
    batches = batches_by_length([i % 97 for i in range(10_000)], 32)
    assert len(batches) == 313
    assert [len(batch) for batch in batches[-1:]] == [16]
