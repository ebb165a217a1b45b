"""Replace torch's kernels by compiled ones, in a model that serves.

The first start on a machine compiles for 20 seconds and more. The model serves meanwhile. When the code is in the
cache, a thread replaces the linear layers one by one, so that only one is in memory twice. Both kinds compute the same
but for rounding, so a step may use both, and sequences continue. Last the compiled step replaces the layers. The
accuracy of weights that the load has quantized is then measured again.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog
import torch

from frameworks.core.progress import working
from frameworks.pytorch.generation.decoders.adapters.layers import base_of
from frameworks.pytorch.generation.decoders.adapters.set import AdapterSet
from frameworks.pytorch.generation.decoders.compiled_step import compiled_step
from frameworks.pytorch.generation.decoders.kv_cache import KeyValueCache
from frameworks.pytorch.generation.decoders.runner import PagedRunner
from frameworks.pytorch.generation.step.quantization_report import Reporter, with_products
from frameworks.pytorch.generation.step.trial import Trial
from frameworks.pytorch.generation.weights.group_linear import DeferredGroupLinear, QuantizedGroupLinear
from frameworks.pytorch.generation.weights.kernel_choice import log_trials
from frameworks.pytorch.generation.weights.linear import Linear, RestorableLinear
from frameworks.pytorch.generation.weights.linear_makers import LaterLinears, LinearMaker
from frameworks.pytorch.generation.weights.packed.modules import replaced
from frameworks.pytorch.int8_choice import sample_rows
from frameworks.pytorch.openmp import alone_beside_steps
from frameworks.scheduling.steps.blocks import BlockPool
from frameworks.scheduling.steps.sequence import StepPart
from frameworks.types import ProductTrial, QuantizationReport
from memory.allocator import give_back_freed_memory

log = structlog.get_logger(__name__)

# Relative to the result of the matmul: both kinds round activations or sums to the dtype.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 3e-2}
# Compiled GEMMs of packed weights quantize activations, and some weights once more; a wrong result is off by about 1.
_GROUP_TOLERANCE = 0.1
_MAX_WAIT_S, _LOOK_S, _MAX_PAUSE_S = 30.0, 0.1, 60.0
# Of all models of the process, for the memory of one layer.
_one_at_a_time = threading.Lock()

OnSwitched = Callable[[tuple[ProductTrial, ...], QuantizationReport | None], None]


@dataclass(frozen=True, slots=True)
class SwitchParts:
    """The parts of a model that a switch changes, and those that it needs.

    `name`, `dtype`: of the model. `maker`: made the layers. `packed_tolerance`: as of `Trial.check`. `reporter`: of
    weights that the load has quantized, `report`: its report with the first layers; None: it has quantized none.
    """

    name: str
    dtype: str
    runner: PagedRunner
    adapters: AdapterSet
    maker: LinearMaker
    trial: Trial
    pool: BlockPool
    packed_tolerance: float = 0.0
    reporter: Reporter | None = None
    report: QuantizationReport | None = None


class _Closed(Exception):
    """The model is closed."""


class KernelSwitch:
    """The change of one model to compiled kernels. `start` and `close` are called by the owner of the model."""

    def __init__(self, parts: SwitchParts, code: "Future[None]") -> None:
        """`code`: done when the code is in the cache."""
        self._parts: SwitchParts | None = parts
        self._code = code
        self._thread: threading.Thread | None = None
        self._products: tuple[ProductTrial, ...] = ()  # of the layers that were replaced
        self._lock = threading.Lock()

    def start(self, on_switched: OnSwitched) -> None:
        """Change the kernels when the code is in the cache.

        `on_switched`: called once on another thread, with the final kernels and the report of quantized weights; None:
        the report is unchanged. It is also called if the change failed, and the model keeps torch's kernels.
        """
        self._code.add_done_callback(lambda code: self._begin(code, on_switched))

    def close(self) -> None:
        """Change nothing more, and release the model."""
        with self._lock:
            self._parts, thread = None, self._thread
        if thread is not None:
            thread.join(_MAX_WAIT_S)

    def _begin(self, code: "Future[None]", on_switched: OnSwitched) -> None:
        error = code.exception()
        with self._lock:
            parts = self._parts
            if parts is not None and error is None:
                arguments = (parts, on_switched)
                self._thread = threading.Thread(target=self._run, args=arguments, name="kernel-switch", daemon=True)
                self._thread.start()
        if parts is not None and error is not None:
            _warn(parts.name, str(error))
            on_switched(parts.maker.products, None)

    def _run(self, parts: SwitchParts, on_switched: OnSwitched) -> None:
        started_s = time.monotonic()
        report: QuantizationReport | None = None
        try:
            if parts.packed_tolerance:
                self._wait_for_pause(parts.pool)
            with self._wait_for_others(), torch.no_grad(), alone_beside_steps():
                later = self._switch_linears(parts)
                report = self._switch_step(parts, later)
        except _Closed:
            return
        except Exception as error:  # noqa: BLE001 - the layers that were not replaced stay in use
            _warn(parts.name, f"{type(error).__name__}: {error}")
        else:
            log_trials(self._products, parts.name, parts.dtype)
            seconds = round(time.monotonic() - started_s, 2)
            has_step = parts.runner.step is not None
            log.info("the model uses compiled kernels", model=parts.name, seconds=seconds, compiled_step=has_step)
        finally:
            with self._lock:
                self._parts = None
        give_back_freed_memory()
        on_switched(_joined(parts.maker.products, self._products), report)

    def _switch_linears(self, parts: SwitchParts) -> LaterLinears:
        later = parts.maker.later()
        targets = parts.runner.decoder.linear_attributes
        with working("compile", parts.name) as work:
            work.phase("changing the layers", len(targets), "layers")
            for target in targets:
                self._check_open()
                before = base_of(getattr(target.owner, target.attribute))
                linear = replaced(before, lambda each: _remade(each, later))
                if linear is not before:
                    parts.adapters.put_linear(target, linear)
                    self._products = later.products
                work.step()
        return later

    def _switch_step(self, parts: SwitchParts, later: LaterLinears) -> QuantizationReport | None:
        """Use the compiled step, where the decoder allows one. Return the report of quantized weights.

        Without the step, the decoder keeps its KV cache and its computation, so the accuracy is that of before.
        """
        runner, reporter = parts.runner, parts.reporter
        self._check_open()
        # The blocks of the model's own cache may be in use.
        num_blocks = parts.trial.num_blocks if reporter is None else parts.trial.num_report_blocks
        cache = KeyValueCache(runner.cache.shape, num_blocks, torch.device("cpu"))
        tried = compiled_step(runner.decoder, cache)
        step = compiled_step(runner.decoder, runner.cache)
        products, report = self._products, parts.report
        if report is not None and reporter is not None:
            report = with_products(report, reporter.bits, products, parts.maker.held_bytes_with(later))
        if tried is None or step is None:
            return report

        def compute(step_parts: list[StepPart]) -> torch.Tensor:
            self._check_open()
            return tried.logits(step_parts)

        parts.trial.check_step(compute, cache.shape.dtype, parts.packed_tolerance)
        if reporter is not None:
            report = reporter.measure(compute, products, parts.maker.held_bytes_with(later))
        self._check_open()
        parts.adapters.use_compiled(step.adapters)
        runner.step = step
        parts.pool.moves_ended = False
        return report

    @contextmanager
    def _wait_for_others(self) -> Iterator[None]:
        """Wait for the changes of other models. Raises _Closed."""
        while not _one_at_a_time.acquire(timeout=_LOOK_S):
            self._check_open()
        try:
            yield
        finally:
            _one_at_a_time.release()

    def _wait_for_pause(self, pool: BlockPool) -> None:
        """Wait at most _MAX_PAUSE_S until no sequence runs: these kernels quantize activations in another way.

        Raises _Closed.
        """
        ends_s = time.monotonic() + _MAX_PAUSE_S
        while pool.num_used and time.monotonic() < ends_s:
            self._check_open()
            time.sleep(_LOOK_S)

    def _check_open(self) -> None:
        if self._parts is None:
            raise _Closed


def _remade(before: Linear, later: LaterLinears) -> Linear:
    """Return a layer of the same weights with compiled kernels; `before` itself where it cannot be made again.

    Raises ValueError where the new layer computes something else.
    """
    if isinstance(before, DeferredGroupLinear):
        weights = before.groups()
        linear = later.group(weights, before.bias)
        dtype = torch.float32 if before.bias is None else before.bias.dtype
        _check(linear, before, (weights.outputs, weights.inputs), dtype, _GROUP_TOLERANCE)
        return linear
    if isinstance(before, QuantizedGroupLinear):
        linear = later.again(before)
        _check(linear, before, before.shape, before.dtype, _TOLERANCE[before.dtype])
        return linear
    if isinstance(before, RestorableLinear):
        weight = before.dense()
        linear = later.floats(weight, before.bias)
        _check(linear, before, (weight.shape[0], weight.shape[1]), weight.dtype, _TOLERANCE[weight.dtype])
        return linear
    return before


def _check(linear: Linear, before: Linear, shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    """Raise ValueError where the layers differ by more than `tolerance`.

    `shape`: outputs, inputs. `dtype`: of the activations.
    """
    rows = sample_rows(shape[1]).to(dtype)
    expected = before(rows).float()
    error = float((linear(rows).float() - expected).norm() / expected.norm().clamp_(min=1e-30))
    if not error <= tolerance:
        raise ValueError(f"the product of a layer of {shape[0]}x{shape[1]} is off by {error:.3g} of torch's")


def _joined(before: Sequence[ProductTrial], after: Sequence[ProductTrial]) -> tuple[ProductTrial, ...]:
    """Return the kernels of all layers, most weights first, of which those of `after` are replaced."""
    replaced = Counter[tuple[int, int]]()
    for each in after:
        replaced[each.outputs, each.inputs] += each.layers
    left = [replace(each, layers=each.layers - replaced[each.outputs, each.inputs]) for each in before]
    found = [*after, *(each for each in left if each.layers > 0)]
    return tuple(sorted(found, key=lambda each: -each.outputs * each.inputs * each.layers))


def _warn(model: str, reason: str) -> None:
    log.warning("the model keeps torch's kernels instead of compiled ones", model=model, reason=reason)
