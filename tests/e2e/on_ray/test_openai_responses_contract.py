"""Run the contract tests of /v1/responses unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_openai_responses import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
