"""`python -m app` is `roundhouse`."""

import sys

from app.cli.commands import main

if __name__ == "__main__":
    sys.exit(main())
