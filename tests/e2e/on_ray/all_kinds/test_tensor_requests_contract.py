"""Run the contract tests of requests with tensors unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_tensor_requests import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
