"""Run the contract tests of the OpenAI API unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_openai import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.extended]
