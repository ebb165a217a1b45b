"""A server without addresses imports none of the packages of sources, and none of Ray."""

import subprocess
import sys

import pytest

from tests.e2e.server import ROOT

pytestmark = pytest.mark.extended

CODE = """
import sys
from app.config import load_settings
from app.server.build import build
build(load_settings(None, {}, {"server.grpc_port": 0}), "none").app._admin._app.built()
packages = {"adlfs", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "google.auth", "huggingface_hub", "ray", "s3fs"}
names = ("connections", "http_bytes", "http_exchange", "hub", "store")
ours = {f"frameworks.sources.{name}" for name in names} | {"extensions.sources.bucket_remote", "extensions.sources.web"}
sys.exit(", ".join((packages | ours) & set(sys.modules)) or 0)
"""


def test_server_without_addresses_imports_no_source() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
