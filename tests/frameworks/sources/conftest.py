"""A web server on loopback for the tests of sources."""

from collections.abc import Iterator

import pytest

from tests.support.web_server import WebServer, web_server


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as running:
        yield running
