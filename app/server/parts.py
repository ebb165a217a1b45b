"""The parts of a server process, as the wiring gives them to each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.admin.extension_part import ExtensionPart
from app.admin.views import Views
from app.inference.context import InferenceService
from app.inference.lifecycle import ServerLifecycle
from app.inference.pipeline import Pipeline
from app.inference.response_cache import CacheUse
from app.inference.shadowing import ShadowTraffic
from app.observability.integrity import IntegrityMonitor
from app.observability.loop_lag import LoopLagMonitor
from app.observability.process_counts import ProcessCounts
from app.observability.tallies import RequestTallies
from app.observability.worker_counts import WorkerCounts
from frameworks.manager import MLFrameworkManager
from frameworks.scheduling.admission import RequestLimit
from memory.tensor_pool import TensorPool


@dataclass(frozen=True, slots=True)
class Inference:
    """The parts that run requests, from the manager up to the pipeline. `parts`: of the extensions."""

    manager: MLFrameworkManager
    pool: TensorPool
    response_cache: CacheUse
    requests: RequestLimit
    service: InferenceService
    shadowing: ShadowTraffic
    pipeline: Pipeline
    lifecycle: ServerLifecycle
    parts: tuple[ExtensionPart, ...]


@dataclass(frozen=True, slots=True)
class Monitors:
    """The parts that check the server itself."""

    loop_lag: LoopLagMonitor
    integrity: IntegrityMonitor


@dataclass(frozen=True, slots=True)
class Counting:
    """The counts of the whole server. `process_counts`: returns those that are no counts of requests. `memory_bytes`:
    returns the memory of its processes, but for those of models.
    """

    views: Views
    tallies: RequestTallies
    process_counts: Callable[[], ProcessCounts]
    workers: WorkerCounts
    memory_bytes: Callable[[], int]
    labels: Mapping[str, str]
