"""Failures of models that an operator loads."""

from collections.abc import Iterator
from contextlib import contextmanager

from frameworks.core.errors import InvalidModel, ModelFailed


@contextmanager
def as_failed_model(name: str) -> Iterator[None]:
    """Turn InvalidModel into ModelFailed: the files are wrong here, and the request that loads them is right."""
    try:
        yield
    except InvalidModel as error:
        raise ModelFailed.because(f'model "{name}" failed to load', error) from error
