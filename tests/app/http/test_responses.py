"""OpenAI's rate limit headers."""

import pytest

from app.auth.quotas import TenantLimits
from app.config.auth_settings import TenantSettings
from app.http.responses import format_duration, rate_limit_headers
from frameworks.scheduling.byte_limit import ByteLimit
from tests.support.clocks import Clock


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0001, "1ms"),
        (0.012, "12ms"),
        (0.9999, "1s"),
        (7.66, "7.66s"),
        (59.9999, "1m0s"),
        (360, "6m0s"),
        (3602, "1h0m2s"),
    ],
)
def test_duration_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_headers_name_configured_limits_only() -> None:
    limits = TenantLimits(TenantSettings(name="t", requests_per_minute=600), ByteLimit(None), Clock())
    assert limits.requests is not None
    limits.requests.charge(3)
    assert dict(rate_limit_headers(limits)) == {
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"57",
        b"x-ratelimit-reset-requests": b"300ms",
    }


def test_debt_is_no_negative_remainder() -> None:
    limits = TenantLimits(TenantSettings(name="t", tokens_per_minute=600), ByteLimit(None), Clock())
    limits.use(660)
    assert dict(rate_limit_headers(limits)) == {
        b"x-ratelimit-limit-tokens": b"600",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"1m6s",
    }
