"""Run a server of the S3 API on loopback, with buckets in memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

_SECRETS = {"AWS_ACCESS_KEY_ID": "AKIDFORTESTS", "AWS_SECRET_ACCESS_KEY": "not-to-be-shown"}


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server. `client`: of boto3, which writes the buckets."""

    url: str
    client: Any

    def make_bucket(self, name: str, files: Mapping[str, bytes]) -> None:
        """Make a bucket with files."""
        self.client.create_bucket(Bucket=name)
        for path, content in files.items():
            self.client.put_object(Bucket=name, Key=path, Body=content)

    def set_environment(self, patch: pytest.MonkeyPatch) -> None:
        """Make the server and its credentials known to the AWS packages of this process."""
        for name, value in _SECRETS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", self.url)
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/dev/null")


@contextmanager
def running_s3() -> Iterator[S3Server]:
    """Run a server on a free port."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="writer",
        aws_secret_access_key="writer",
    )
    try:
        yield S3Server(url, client)
    finally:
        client.close()
        server.stop()
