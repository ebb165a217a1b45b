"""Run the contract tests of the Open Inference Protocol unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_open_inference import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
