"""Make tiny random models of every model type of every task, with inputs for them. Begin at `making.make`."""

from tests.support.models.tasks.catalogue import architectures, census
from tests.support.models.tasks.inputs import as_bytes, parameters, samples
from tests.support.models.tasks.making import make
from tests.support.models.tasks.not_built import NOT_BUILT, WITHOUT_PIPELINE

__all__ = ["NOT_BUILT", "WITHOUT_PIPELINE", "architectures", "as_bytes", "census", "make", "parameters", "samples"]
