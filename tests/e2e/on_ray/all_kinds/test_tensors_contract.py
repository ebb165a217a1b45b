"""Run the contract tests of tensors unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_tensors import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
