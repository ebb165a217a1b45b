"""Which MatMuls of a graph stay in fp32, found by measuring."""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import structlog

from frameworks.onnx.quantization.graph import QuantizableGraph
from frameworks.onnx.quantization.sensitivity import Sensitivity, by_gain
from frameworks.onnx.session import OnnxModel
from frameworks.onnx.text_model import OnnxTextModel
from frameworks.quantization.comparison import cosines_of
from frameworks.types import Batch

log = structlog.get_logger(__name__)

Model = OnnxModel | OnnxTextModel

AIM_COSINE = 0.988
"""Of the worst warm-up input. The worst of thousands of other texts is less than twice as far from 1 as theirs."""
_TRIALS = 5
_FAR_FROM_OTHERS = 8.0
_TINY = 1e-30


def outliers(order: Sequence[Sensitivity]) -> frozenset[str]:
    """Those that lose many times more than is usual in this graph: left in fp32 also where all are to be int8. Of the
    36 of MiniLM it is one, which costs 5 % of the speed and takes away a fifth of the distance.
    """
    usual = median(each.gain for each in order)
    return frozenset(each.name for each in order if each.gain > _FAR_FROM_OTHERS * max(usual, _TINY))


def choose_unquantized(
    graph: QuantizableGraph,
    original: Model,
    open_model: Callable[[Path], Model],
    batches: Sequence[Batch],
    folder: Path,
    aim: float | None = AIM_COSINE,
) -> frozenset[str]:
    """The names of the MatMuls to leave in fp32.

    With an `aim`, as few as a few trials show it takes for the worst input to come to this cosine, all of them where
    none does; without, only the outliers. `open_model`: serves a graph's file as the original's entry does. `folder`:
    files are written there and taken away.
    """
    order = by_gain(graph, original, batches, folder)
    if aim is None:
        return outliers(order)
    expected = [original.infer(batch) for batch in batches]
    trial = folder / "trial.onnx"

    def worst_cosine(count: int) -> float:
        graph.write(trial, frozenset(each.name for each in order[:count]))
        answers = [open_model(trial).infer(batch) for batch in batches]
        for file in folder.glob("trial.onnx*"):
            file.unlink()
        return float(cosines_of(expected, answers, batches).min())

    count = fewest(worst_cosine, [each.error for each in order], aim)
    log.info("MatMuls left in fp32", count=count, of=len(order))
    return frozenset(each.name for each in order[:count])


def fewest(worst_cosine: Callable[[int], float], errors: Sequence[float], aim: float) -> int:
    """The smallest number found, in a few trials, at which the worst cosine comes to the aim; all where none does.

    Each trial takes the error that remains as a measure of the distance, and so chooses the next number.
    """
    total = max(sum(errors), _TINY)
    remaining = [1 - sum(errors[:count]) / total for count in range(len(errors) + 1)]
    too_few, enough = -1, len(errors)
    count = 0
    for _ in range(_TRIALS):
        distance = 1 - worst_cosine(count)
        if distance <= 1 - aim:
            enough = count
        else:
            too_few = count
        if enough - too_few <= 1:
            break
        wanted = (1 - aim) / max(distance, _TINY) * remaining[count]
        guess = next((number for number, share in enumerate(remaining) if share <= wanted), len(errors))
        count = min(max(guess, too_few + 1), enough - 1)
    return enough
