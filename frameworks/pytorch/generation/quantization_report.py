"""Report how fast and how accurate a generating model with quantised weights is, and warn where it is not."""

from dataclasses import replace

import structlog

from frameworks.pytorch.generation.compiled_linears import GROUP
from frameworks.pytorch.generation.linear_makers import Bits, LinearMaker
from frameworks.pytorch.generation.runner import PagedRunner
from frameworks.pytorch.generation.trial import Trial
from frameworks.types import QuantizationReport

log = structlog.get_logger(__name__)

MIN_COSINE: dict[Bits, float | None] = {"int8": None, "int4": 0.9}
"""Of the logits, without `min_cosine` in the entry; None: that of other models."""
MAX_PERPLEXITY = {"int8": 1.005, "int4": 1.05}
"""Times the original's: more is warned of."""


def report_quantization(bits: Bits, trial: Trial, runner: PagedRunner, maker: LinearMaker) -> QuantizationReport:
    """Compare a decoder, whose layers `maker` made, with the original."""
    products = maker.products
    kernel, weights = (products[0].kernel, products[0].weights) if products else ("torch", "whole")
    rows = "bfloat16 rows" if kernel == "weight-only" else "dynamic int8 rows"
    parts = f"in groups of {GROUP}" if weights == "grouped" else "per channel"
    scheme = f"{bits} {parts}, {rows}"
    report = trial.report(runner, scheme, maker.original_bytes, maker.held_bytes)
    trials = products[0].trials if products else ()
    return replace(report, kernel=kernel, weights=weights, kernels=trials)


def warn_if_less_accurate(report: QuantizationReport, bits: Bits, model: str) -> None:
    """Warn of a model whose perplexity is too far above its original's."""
    if report.perplexity is None or report.perplexity_original is None:
        return
    if report.perplexity > MAX_PERPLEXITY[bits] * report.perplexity_original:
        log.warning(
            "the quantised model is less accurate than expected, and is served as its entry asks",
            model=model,
            perplexity=report.perplexity,
            perplexity_original=report.perplexity_original,
            remedy='remove dtype, or set dtype = "int8"' if bits == "int4" else "remove dtype",
        )
