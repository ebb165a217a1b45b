"""Settings of how models run: `[performance]`, `[scheduling]`.

The docstrings of the fields are texts of the manual, as those of `entries.py`.
"""

from typing import Annotated

from pydantic import BaseModel, Field

from frameworks.core.cpus import usable_cpus
from frameworks.core.settings.entries import Count, Isolation, ModelEntry
from frameworks.core.settings.entry_values import names_several_devices
from memory.settings import SETTINGS_RULES


class PerformanceSettings(BaseModel):
    """`[performance]`: defaults for every model."""

    model_config = SETTINGS_RULES

    max_batch_size: Count = 32
    """Maximum rows in one batch."""
    intra_op_threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Threads of one operator. None: the CPUs that this process may use; affinity and the CPU quota of a container
    count."""
    inter_op_threads: Annotated[int, Field(ge=1, le=1024)] = 1
    """Operators that run in parallel."""
    enable_gpu: bool = True
    """Whether GPUs are used."""
    enable_tensorrt: bool = False
    """Whether TensorRT is used where it is installed."""
    enable_quantization: bool = True
    """Whether `quantized`, `dtype = "int8"` and `dtype = "int4"` are applied; if not, a warning names the model."""
    isolation: Isolation = "none"
    """Where models run that have no `isolation` of their own."""

    def isolation_of(self, entry: ModelEntry) -> Isolation:
        """Return where a model runs: one with several devices has a process for each."""
        if names_several_devices(entry.device) or entry.num_ranks > 1:
            return "process"
        return entry.isolation or self.isolation

    def num_intra_op_threads(self, instances: int = 1) -> int:
        """Return the threads of one operator: `intra_op_threads`, or the CPUs that this process may use.

        The instances of a model divide the CPUs, so that their threads never exceed the CPUs.
        """
        wanted = usable_cpus() if self.intra_op_threads is None else self.intra_op_threads
        return wanted if instances == 1 else max(1, min(wanted, usable_cpus() // instances))


class SchedulingSettings(BaseModel):
    """`[scheduling]`: bounds of the queues, deadlines, priorities."""

    model_config = SETTINGS_RULES

    max_queue_size: Count = 1024
    """Maximum queued requests of all models together; more are refused with 503. A request for `n` texts counts as
    `n`."""
    max_concurrent_requests: Count | None = None
    """Maximum requests in progress, from the arrival of the whole body until the response is sent. None: no bound."""
    default_timeout_ms: Count | None = None
    """Deadline of a request that has no `timeout_ms`. None: no deadline."""
    ageing_ms: Annotated[float, Field(gt=0)] = 1000.0
    """Time in the queue after which a request moves up one level of priority."""
    min_residency_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    """Minimum time that a loaded model stays before it is evicted for a request to another one. It stays at least as
    long as its load took."""
