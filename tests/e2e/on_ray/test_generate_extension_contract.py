"""Run the contract tests of generation over the Open Inference Protocol unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_generate_extension import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
