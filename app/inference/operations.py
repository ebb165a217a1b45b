"""Register the operations of a pipeline."""

from app.inference.pipeline import Pipeline
from app.inference.similarity import Similarities, SimilarityRequest
from frameworks.models.subrequests import SubRequests


def add_operations(pipeline: Pipeline, parts: SubRequests) -> None:
    """Add the operations that each process with a pipeline has. `parts`: runs their models."""
    pipeline.operations[SimilarityRequest] = Similarities(parts)
