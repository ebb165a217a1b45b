"""Run the contract tests of texts over the OpenAI API unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_openai_texts import *  # noqa: F403

pytestmark = [pytest.mark.ray, pytest.mark.nightly]
