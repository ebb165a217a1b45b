"""In a server that tests start: ONNX runs wait until a test allows them.

A run waits while a file GATE lies beside the model's graph. The file holds two numbers: an identifier, new each time
that the gate is closed, and how many runs are allowed since then. `tests.e2e.gates.RunGate` writes it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime as ort

GATE = "gate"
_POLL_S = 0.002
_lock = threading.Lock()
_runs: Counter[tuple[Path, int]] = Counter()


def wait_for_turn(gate: Path) -> None:
    """Block until the gate is open, or was closed again since, or allows this run."""
    state = read_gate(gate)
    if state is None:
        return
    with _lock:
        _runs[gate, state[0]] += 1
        turn = _runs[gate, state[0]]
    while (now := read_gate(gate)) is not None and now[0] == state[0] and now[1] < turn:
        time.sleep(_POLL_S)


def read_gate(gate: Path) -> tuple[int, int] | None:
    """The identifier and the number of allowed runs; None where the gate is open."""
    try:
        identifier, allowed = gate.read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return None
    return int(identifier), int(allowed)


def gated(run: Callable[..., Any]) -> Callable[..., Any]:
    """A method of InferenceSession that waits for its turn first."""

    def wait_and_run(session: Any, *arguments: Any, **options: Any) -> Any:
        if session._model_path:
            wait_for_turn(Path(session._model_path).parent / GATE)
        return run(session, *arguments, **options)

    return wait_and_run


def gate_runs() -> None:
    """Make every session wait for its turn."""
    for method in ("run", "run_with_iobinding", "run_with_ort_values"):
        setattr(ort.InferenceSession, method, gated(getattr(ort.InferenceSession, method)))
