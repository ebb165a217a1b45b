"""Run a rank beside rank 0: `python -m …tensor_parallel.follower FD FOLDER`, a socket to rank 0 and the ranks' folder.

The process ends when its standard input is closed: rank 0 holds the other end, also where a signal ends it. Then the
folder is removed here.
"""

import os
import pickle
import shutil
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

import structlog
import torch

from frameworks.core.errors import RoundhouseError
from frameworks.pytorch.generation.tensor_parallel.messages import MET, Setup, send_error
from frameworks.pytorch.generation.tensor_parallel.rank_group import RankGroup
from frameworks.pytorch.generation.tensor_parallel.shard_loading import load_shard_runner
from frameworks.pytorch.generation.tensor_parallel.step_messages import decode_step

_STDIN = 0
_WARNING = 30
_END_S = 30.0


def main(descriptor: str, folder: str) -> NoReturn:
    """Load the part of the model of this rank, and compute the steps of rank 0."""
    threading.Thread(target=_end_with_rank_0, args=(folder,), name="lifeline", daemon=True).start()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_WARNING))
    status = 1
    try:
        _follow(Connection(int(descriptor)))
    except (EOFError, ConnectionError):
        shutil.rmtree(folder, ignore_errors=True)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # A library that is unloaded while it computes ends the process with a signal.
        os._exit(status)


def _end_with_rank_0(folder: str) -> NoReturn:
    """Wait for the end of rank 0, also while this rank waits for an operation."""
    while os.read(_STDIN, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _follow(connection: Connection) -> NoReturn:
    """Raises EOFError where rank 0 has closed the connection."""

    def meet() -> None:
        connection.send_bytes(MET)
        connection.recv_bytes()

    group: RankGroup | None = None
    try:
        setup: Setup = pickle.loads(connection.recv_bytes())  # noqa: S301 - of rank 0, which started this process
        meet()
        group = RankGroup(setup.shard, torch.device(setup.load.device.id), setup.group_file)
        runner = load_shard_runner(setup.load, group, meet).runner
        meet()
        with torch.inference_mode():
            while True:
                runner.logits(decode_step(connection.recv_bytes()))
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # noqa: BLE001 - the process ends
        if group is not None and group.is_broken:
            # Another rank has failed first. Rank 0 notes which one, and ends this process.
            time.sleep(_END_S)
        else:
            send_error(connection, error)
            if not isinstance(error, RoundhouseError):
                traceback.print_exc()
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
