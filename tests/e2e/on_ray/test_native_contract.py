"""Run the contract tests of texts over the native API unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_text import *  # noqa: F403

del test_regression_equals_pipeline  # noqa: F821 - it starts a server of its own

pytestmark = [pytest.mark.ray, pytest.mark.extended]
