"""Fetch onnxruntime-web from npm at a pinned version to app/web/runtime/: it runs models in the page.

`make web` and `make test` run `python -m tests.web.runtime`. The files are not committed: the page works without them.
"""

import shutil
import sys
from importlib.resources import files

from tests.web.vendor import RECORD, VENDOR, Package, main

RUNTIME = VENDOR.with_name("runtime")
PACKAGES = (
    Package(
        "onnxruntime-web",
        "1.30.0",
        "MIT",
        "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        {
            f"dist/{name}": name
            for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")
        },
    ),
)
LICENCES = ("LICENSE", "ThirdPartyNotices.txt")
"""Of the same project. Its package in npm lacks them, so they are those of the package for Python."""


def has_npm() -> bool:
    """Return whether the runtime can be fetched here."""
    return shutil.which("npm") is not None


def fetch() -> int:
    """Write the runtime and its licences. Return the exit status."""
    status = main(PACKAGES, RUNTIME)
    if status == 0:
        for name in LICENCES:
            (RUNTIME / name).write_bytes((files("onnxruntime") / name).read_bytes())
    return status


def is_present() -> bool:
    """Return whether the files of the pinned version are there."""
    record = RUNTIME / RECORD
    return record.is_file() and f'"version": "{PACKAGES[0].version}"' in record.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(fetch())
