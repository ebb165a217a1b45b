"""Run the contract tests of refusals unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_refusals import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
