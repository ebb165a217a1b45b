"""Open the source of an address, with the package that its scheme needs."""

from importlib.util import find_spec

from frameworks.core.addresses import SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.core.extras import install_command
from frameworks.sources.contract import Remote


def open_remote(address: SourceAddress) -> Remote:
    """Return the source of an address; opens no connection.

    Raises InvalidModel where its package is missing, and where its settings in the environment are invalid.
    """
    extra = missing_package(address)
    if extra is not None:
        raise InvalidModel(
            f"{address}: expected the packages for {address.scheme}://, got none; {install_command(extra)}"
        )
    if address.scheme == "hf":
        from frameworks.sources.hub import HubRemote

        return HubRemote(address)
    if address.scheme == "https":
        from frameworks.sources.web import WebRemote

        return WebRemote(address)
    from frameworks.sources.buckets.opening import open_bucket

    return open_bucket(address)


def missing_package(address: SourceAddress) -> str | None:
    """Return the extra that the scheme of an address needs and that is not installed; None where nothing is missing."""
    if address.scheme == "hf":
        return "hub" if find_spec("huggingface_hub") is None else None
    from frameworks.sources.buckets.opening import missing_extra

    return missing_extra(address)
