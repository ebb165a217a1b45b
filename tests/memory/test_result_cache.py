"""The result cache against a plain list of entries: same hits, same evictions, bytes within the bound."""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from memory.result_cache import ENTRY_BYTES, ResultCache

OWNERS = ("a", "b")


@dataclass(frozen=True)
class Key:
    """A key whose hash is the same for all keys."""

    name: int

    def __hash__(self) -> int:
        return 1


@dataclass
class Entry:
    key: Key
    value: int
    owner: str
    size_bytes: int
    put_at_s: float


class CacheMachine(RuleBasedStateMachine):
    """Put, get and drop in any order, with a manual clock. `kept`: least recently used first."""

    @initialize(
        max_entries=st.integers(2, 4), spare_bytes=st.integers(0, 600), ttl_s=st.sampled_from([None, 1.0, 10.0])
    )
    def begin(self, max_entries: int, spare_bytes: int, ttl_s: float | None) -> None:
        self.now_s = 100.0
        self.ttl_s = ttl_s
        self.max_bytes = max_entries * ENTRY_BYTES + spare_bytes
        self.cache: ResultCache[int] = ResultCache(self.max_bytes, ttl_s, lambda: self.now_s)
        self.kept: list[Entry] = []
        self.values = 0
        self.evictions = 0

    @rule(name=st.integers(0, 3), owner=st.sampled_from(OWNERS), size_bytes=st.sampled_from([0, 1, 100, 500, 3000]))
    def put(self, name: int, owner: str, size_bytes: int) -> None:
        self.values += 1
        self.cache.put(Key(name), self.values, owner, size_bytes)
        self.kept = [entry for entry in self.kept if entry.key.name != name]
        if size_bytes + ENTRY_BYTES > self.max_bytes:
            return
        while sum(entry.size_bytes for entry in self.kept) + size_bytes + ENTRY_BYTES > self.max_bytes:
            del self.kept[0]
            self.evictions += 1
        self.kept.append(Entry(Key(name), self.values, owner, size_bytes + ENTRY_BYTES, self.now_s))

    @rule(names=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def get(self, names: list[int]) -> None:
        for name in names:
            found = next((entry for entry in self.kept if entry.key.name == name), None)
            if found is not None:
                self.kept.remove(found)
                if self.ttl_s is not None and self.now_s >= found.put_at_s + self.ttl_s:
                    found = None
                else:
                    self.kept.append(found)
            assert self.cache.get(Key(name)) == (found.value if found else None)

    @rule(owner=st.sampled_from([*OWNERS, "nobody"]))
    def drop(self, owner: str) -> None:
        self.cache.drop(owner)
        self.kept = [entry for entry in self.kept if entry.owner != owner]

    @rule(seconds=st.sampled_from([0.5, 1.0, 9.0]))
    def later(self, seconds: float) -> None:
        self.now_s += seconds

    @invariant()
    def bytes_and_entries_are_counted_and_bounded(self) -> None:
        assert self.cache.size_bytes == sum(entry.size_bytes for entry in self.kept) <= self.max_bytes
        assert len(self.cache) == len(self.kept)
        assert self.cache.evictions == self.evictions

    @invariant()
    def order_is_by_last_use(self) -> None:
        assert list(self.cache._entries) == [entry.key for entry in self.kept]


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCache = CacheMachine.TestCase


def test_keys_with_equal_hash_are_distinct() -> None:
    cache: ResultCache[str] = ResultCache(10**6, None)
    assert hash(Key(1)) == hash(Key(2))
    cache.put(Key(1), "one", "m", 0)
    assert (cache.get(Key(1)), cache.get(Key(2))) == ("one", None)
    cache.put(Key(2), "two", "m", 0)
    assert (cache.get(Key(1)), cache.get(Key(2))) == ("one", "two")


def test_put_larger_than_cache_evicts_nothing() -> None:
    cache: ResultCache[str] = ResultCache(2 * ENTRY_BYTES, None)
    cache.put("small", "s", "m", 0)
    cache.put("large", "l", "m", ENTRY_BYTES + 1)
    assert (cache.get("large"), cache.get("small"), cache.evictions) == (None, "s", 0)
    cache.put("just", "j", "m", ENTRY_BYTES)
    assert (cache.get("just"), cache.get("small"), cache.evictions) == ("j", None, 1)
    # A new value that is too large also removes the old one.
    cache.put("just", "larger", "m", ENTRY_BYTES + 1)
    assert (cache.get("just"), cache.size_bytes) == (None, 0)


def test_put_evicts_least_recently_used_entry() -> None:
    cache: ResultCache[str] = ResultCache(3 * ENTRY_BYTES, None)
    for name in "abc":
        cache.put(name, name, "m", 0)
    assert cache.get("a") == "a"
    cache.put("b", "b again", "m", 0)
    cache.put("d", "d", "m", 0)
    assert [cache.get(name) for name in "abcd"] == ["a", "b again", None, "d"]


def test_get_does_not_extend_expiry() -> None:
    now_s = [0.0]
    cache: ResultCache[str] = ResultCache(10**6, 2.0, lambda: now_s[0])
    cache.put("key", "value", "m", 0)
    for second, found in ((1.0, "value"), (1.99, "value"), (2.0, None)):
        now_s[0] = second
        assert cache.get("key") == found


def test_entries_expire_by_real_clock() -> None:
    cache: ResultCache[str] = ResultCache(10**6, ttl_s=1e-9)
    cache.put("key", "value", "m", 0)
    assert cache.get("key") is None
    assert cache.size_bytes == 0
