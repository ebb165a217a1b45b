"""Nonces are refused the second time, kept for as long as their signatures are valid, and bounded in number."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth.errors import Unauthenticated
from app.auth.nonces import MAX_AGE_S, NonceStore
from frameworks.core.errors import Overloaded

START_S = 1_000_000


def accepts(add: Callable[[], None]) -> bool:
    try:
        add()
    except Unauthenticated:
        return False
    return True


def test_nonce_refused_second_time() -> None:
    store = NonceStore(START_S)
    store.add("key", b"one", START_S, START_S)
    with pytest.raises(Unauthenticated, match="expected a new nonce"):
        store.add("key", b"one", START_S + 5, START_S + 5)


def test_nonce_accepted_from_other_key() -> None:
    store = NonceStore(START_S)
    store.add("key", b"one", START_S, START_S)
    store.add("other", b"one", START_S, START_S)
    assert len(store) == 2


def test_nonce_kept_until_signature_too_old() -> None:
    store = NonceStore(START_S)
    store.add("key", b"one", START_S, START_S)
    store.add("key", b"two", START_S + MAX_AGE_S, START_S + MAX_AGE_S)
    assert len(store) == 2
    store.add("key", b"three", START_S + MAX_AGE_S, START_S + MAX_AGE_S + 0.1)
    assert len(store) == 2


def test_signature_before_start_refused() -> None:
    store = NonceStore(START_S)
    with pytest.raises(Unauthenticated, match="after the server started"):
        store.add("key", b"one", START_S - 1, START_S)


def test_full_store_refuses_and_forgets_nothing() -> None:
    store = NonceStore(START_S, max_nonces=2)
    store.add("key", b"one", START_S, START_S)
    store.add("other", b"two", START_S + 10, START_S + 10)
    with pytest.raises(Overloaded) as refused:
        store.add("key", b"three", START_S + 20, START_S + 20)
    assert refused.value.retry_after_s == MAX_AGE_S + 1 - 20
    assert not accepts(lambda: store.add("key", b"one", START_S + 20, START_S + 20))
    # As long as it says, and no longer.
    later_s = START_S + 20 + refused.value.retry_after_s
    store.add("key", b"three", int(later_s), later_s)


def test_one_key_cannot_take_all_places() -> None:
    store = NonceStore(START_S, max_nonces=10, max_of_key=2)
    for nonce in (b"one", b"two"):
        store.add("key", nonce, START_S, START_S)
    with pytest.raises(Overloaded):
        store.add("key", b"three", START_S, START_S)
    store.add("other", b"three", START_S, START_S)


def test_forgotten_nonces_give_places_back() -> None:
    store = NonceStore(START_S, max_nonces=10 * (MAX_AGE_S + 2))
    now_s = START_S
    for number in range(5000):
        now_s += 1 if number % 10 == 0 else 0
        store.add("key", b"%d" % number, now_s, now_s)
    # Ten in each second of the window.
    assert len(store) >= 10 * MAX_AGE_S


def test_clock_set_back_opens_no_replay() -> None:
    store = NonceStore(START_S)
    store.add("key", b"one", START_S, START_S)
    later_s = START_S + MAX_AGE_S + 1
    store.add("key", b"two", later_s, later_s)
    assert not accepts(lambda: store.add("key", b"one", START_S, START_S + 5))
    # Signatures with a right clock are accepted at once after a wrong clock was corrected.
    store.add("key", b"three", START_S + 6, START_S + 6)


def test_concurrent_replays_accepted_once() -> None:
    store = NonceStore(START_S)
    with ThreadPoolExecutor(16) as threads:
        for number in range(200):
            nonce = b"%d" % number
            tries = [threads.submit(accepts, lambda: store.add("key", nonce, START_S, START_S)) for _ in range(16)]  # noqa: B023
            assert sum(each.result() for each in tries) == 1


@given(st.lists(st.tuples(st.integers(-400, 400), st.integers(0, 5), st.integers(-MAX_AGE_S, 30)), max_size=60))
def test_no_nonce_accepted_twice_with_any_clock(steps: list[tuple[int, int, int]]) -> None:
    """`steps`: change of the clock, nonce, and created time of the signature, relative to the clock."""
    store = NonceStore(START_S)
    now_s = START_S
    accepted = set()
    for change_s, nonce, age_s in steps:
        now_s += change_s
        signature = (b"%d" % nonce, now_s + age_s)
        if accepts(lambda: store.add("key", *signature, now_s)):  # noqa: B023
            # The same signature never again, whatever the clock says.
            assert signature not in accepted
            accepted.add(signature)
