"""Run the contract tests of texts over the native API unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_text import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.extended]
