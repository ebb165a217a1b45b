"""Open the source of an address, with the package that its scheme needs. Extensions add schemes to that of hubs."""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from frameworks.core.addresses import Scheme, SourceAddress
from frameworks.core.errors import InvalidModel
from frameworks.core.extras import install_command
from frameworks.sources.contract import OpenRemote, Remote

_PACKAGES: Final = {
    "hf": ("huggingface_hub", "hub"),
    "s3": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "az": ("adlfs", "azure"),
}
"""For each scheme: its package, and the extra of this project that installs it."""
_NONE: Final[Mapping[Scheme, OpenRemote]] = MappingProxyType({})


def open_remote(address: SourceAddress, added: Mapping[Scheme, OpenRemote] = _NONE) -> Remote:
    """Return the source of an address; open no connection. `added`: schemes of extensions.

    Raises InvalidModel for a missing package, an unknown scheme, and invalid settings of the environment.
    """
    extra = missing_package(address)
    if extra is not None:
        raise InvalidModel(
            f"{address}: expected the packages for {address.scheme}://, got none; {install_command(extra)}"
        )
    if address.scheme == "hf":
        from frameworks.sources.hub import HubRemote

        return HubRemote(address)
    if address.scheme not in added:
        raise InvalidModel(
            f"{address}: expected {', '.join(f'{scheme}://' for scheme in ('hf', *added))}, got {address.scheme}://; "
            "install the extension for this scheme"
        )
    return added[address.scheme](address)


def missing_package(address: SourceAddress) -> str | None:
    """Return the extra that the scheme of an address needs and that is not installed; None if nothing is missing."""
    package, extra = _PACKAGES.get(address.scheme, (None, None))
    return extra if package is not None and find_spec(package) is None else None
