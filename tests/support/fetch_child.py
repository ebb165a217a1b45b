"""Fetch a model in a process of its own: `python fetch_child.py ADDRESS CACHE_DIR` prints the bytes and the folder."""

import sys
from pathlib import Path

from frameworks.core.addresses import parse_address
from frameworks.sources.store import SourceStore

if __name__ == "__main__":
    fetched = SourceStore(Path(sys.argv[2]), 1 << 30).fetch(parse_address(sys.argv[1]), None)
    print(fetched.downloaded_bytes, fetched.folder)
