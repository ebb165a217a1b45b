"""The limit on open files, with the system's functions replaced."""

import resource
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from app.server.http_server import connections_within_limit

INFINITY = resource.RLIM_INFINITY
Limits = tuple[int, int]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[Limits, int | None], list[Limits]]:
    """limited(limits, most) sets the limits of the process; more than `most` is refused. Returns all later ones."""

    def limited_to(limits: Limits, most: int | None = None) -> list[Limits]:
        made: list[Limits] = []

        def set_limit(_: int, wanted: Limits) -> None:
            if most is not None and wanted[0] > most:
                raise ValueError("current limit exceeds maximum limit")
            made.append(wanted)

        monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
        monkeypatch.setattr(resource, "setrlimit", set_limit)
        return made

    return limited_to


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ((100_000, 100_000), []),
        ((21_536, 21_536), []),
        ((INFINITY, INFINITY), []),
        ((1024, 524_288), [(21_536, 524_288)]),
        ((1024, INFINITY), [(21_536, INFINITY)]),
    ],
)
def test_soft_limit_is_raised_as_needed(
    limits: Limits, wanted: list[Limits], limited: Callable[[Limits], list[Limits]]
) -> None:
    made = limited(limits)
    with capture_logs() as logs:
        assert connections_within_limit(20_000) == 20_000
    assert (made, logs) == (wanted, [])


@pytest.mark.parametrize(
    ("limits", "most", "fitting", "limit"),
    [
        ((20_000, 20_000), None, 18_464, 20_000),
        ((1024, 4096), None, 2560, 4096),
        ((1024, 2560), None, 1280, 2560),
        ((1024, 2046), None, 1023, 2046),
        ((256, INFINITY), 10_240, 128, 256),
        ((64, 64), None, 32, 64),
    ],
)
def test_low_hard_limit_gives_fewer_connections(
    limits: Limits, most: int | None, fitting: int, limit: int, limited: Callable[[Limits, int | None], list[Limits]]
) -> None:
    limited(limits, most)
    with capture_logs() as logs:
        assert connections_within_limit(20_000) == fitting
    warned = [(line["log_level"], line["limit"], line["max_connections"]) for line in logs]
    assert warned == ([("warning", limit, fitting)] if fitting < 1024 else [])
