"""Run the contract tests of texts over the native API unchanged against a deployment on Ray."""

import pytest

from tests.e2e.test_text import *  # noqa: F403

del test_regression_equals_pipeline, test_entry_offers_shorter_embeddings  # noqa: F821 - they start servers

pytestmark = [pytest.mark.ray, pytest.mark.extended]
