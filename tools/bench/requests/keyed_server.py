"""Run the server in this process, and switch its check of keys: `python -m tools.bench.requests.keyed_server MODEL`.

SIGUSR1 ends the check, SIGUSR2 begins it again. Two server processes differ by more than the check takes, because their
memory is laid out in different ways.
"""

import signal
import sys

from app.auth.key_store import KeyStore


def _switch_by_signals(keys: KeyStore) -> None:
    def switch(number: int, _: object) -> None:
        keys.required = number == signal.SIGUSR2

    signal.signal(signal.SIGUSR1, switch)
    signal.signal(signal.SIGUSR2, switch)


def main() -> int:
    """Serve until SIGINT or SIGTERM; the arguments are those of `roundhouse serve`."""
    load = KeyStore.load

    def load_and_switch(keys: KeyStore) -> None:
        load(keys)
        _switch_by_signals(keys)

    setattr(KeyStore, "load", load_and_switch)  # noqa: B010 - mypy knows no other class with this method
    sys.argv = ["roundhouse", "serve", *sys.argv[1:]]
    from app.cli import main as serve

    return serve()


if __name__ == "__main__":
    sys.exit(main())
