"""No request holds the event loop for more than 10 ms.

The limit is for a machine on which a small request takes 0.1 ms of CPU time, and grows with that time: a slower machine
holds its loop longer.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.configs import EMBEDDED
from tests.e2e.server import GRPC_PORT, RunningServer, free_port, serving, wait_until
from tests.support.held_loop import FILE_VARIABLE, HeldLoop
from tests.support.hostile_http import HOSTILE_HTTP

""" """
