"""Report the speed and accuracy of a language model with quantized weights, and warn where they are low."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from frameworks.pytorch.generation.step.trial import Compute, Trial
from frameworks.pytorch.generation.weights.compiled_linears import GROUP
from frameworks.pytorch.generation.weights.cpu_kernels import GROUPED
from frameworks.pytorch.generation.weights.device_linear import DEVICE_KERNEL
from frameworks.pytorch.generation.weights.linear_makers import Bits
from frameworks.quantization.comparison import check_cosine
from frameworks.types import ProductTrial, QuantizationReport

log = structlog.get_logger(__name__)

MIN_COSINE: dict[Bits, float | None] = {"int8": None, "int4": 0.9}
"""Of the logits, without `min_cosine` in the entry; None: that of other models."""
MAX_PERPLEXITY = {"int8": 1.005, "int4": 1.05}
"""Times the original's: more is warned of."""


@dataclass(frozen=True, slots=True)
class Reporter:
    """Compares a model that has quantized weights with its original. `min_cosine`: of the entry. `original_bytes`: of
    the original weights.
    """

    name: str
    folder: Path
    bits: Bits
    min_cosine: float | None
    trial: Trial
    original_bytes: int

    def measure(self, compute: Compute, products: Sequence[ProductTrial], held_bytes: int) -> QuantizationReport:
        """Return the accuracy and the speed, and warn where they are low. `compute`: as PagedRunner.compute, with a
        cache that is free. `products`, `held_bytes`: of its layers.

        Raises InvalidModel below the smallest cosine.
        """
        report = self.trial.report(compute, _scheme(self.bits, products), self.original_bytes, held_bytes)
        report = with_products(report, self.bits, products, held_bytes)
        min_cosine = MIN_COSINE[self.bits] if self.min_cosine is None else self.min_cosine
        check_cosine(report, min_cosine, self.folder, 'dtype = "bf16" or "f16" is nearer, left out is the original')
        warn_if_less_accurate(report, self.bits, self.name)
        return report


def with_products(
    report: QuantizationReport, bits: Bits, products: Sequence[ProductTrial], held_bytes: int
) -> QuantizationReport:
    """Return a report with the kernels of these layers, most weights first, and their bytes."""
    kernel, weights = _main_kernel(products)
    trials = products[0].trials if products else ()
    return replace(
        report,
        scheme=_scheme(bits, products),
        kernel=kernel,
        weights=weights,
        kernels=trials,
        bytes_after=held_bytes,
    )


def _scheme(bits: Bits, products: Sequence[ProductTrial]) -> str:
    kernel, weights = _main_kernel(products)
    rows = {"weight-only": "bfloat16 rows", DEVICE_KERNEL: "rows in their dtype"}.get(kernel, "dynamic int8 rows")
    parts = f"in groups of {GROUP}" if weights == GROUPED else "per channel"
    return f"{bits} {parts}, {rows}"


def _main_kernel(products: Sequence[ProductTrial]) -> tuple[str, str]:
    """Return the kernel of most weights, and the range that they are quantized to."""
    return (products[0].kernel, products[0].weights) if products else ("torch", "whole")


def warn_if_less_accurate(report: QuantizationReport, bits: Bits, model: str) -> None:
    """Warn of a model whose perplexity is too far above its original's."""
    if report.perplexity is None or report.perplexity_original is None:
        return
    if report.perplexity > MAX_PERPLEXITY[bits] * report.perplexity_original:
        log.warning(
            "the quantized model is less accurate than expected, and is served as its entry asks",
            model=model,
            perplexity=report.perplexity,
            perplexity_original=report.perplexity_original,
            remedy='remove dtype, or set dtype = "int8"' if bits == "int4" else "remove dtype",
        )
