"""Register the operations of a pipeline."""

from app.inference.pipeline import Pipeline
from extensions.search.operations.collections import Collections
from extensions.search.operations.operations import CollectionOperations, Deletes, Searches, Upserts
from extensions.search.operations.requests import DeleteRequest, SearchRequest, UpsertRequest
from extensions.search.operations.similarity import Similarities, SimilarityRequest
from frameworks.models.residency.subrequests import SubRequests


def add_operations(pipeline: Pipeline, parts: SubRequests, collections: Collections | None = None) -> None:
    """Add the operations that each process with a pipeline has. `parts`: runs their models.

    `collections`: those of the process; None: it has none.
    """
    similarities = pipeline.operations[SimilarityRequest] = Similarities(parts)
    pipeline.at_close(similarities.close)
    if collections is not None:
        pipeline.collections = collections
        pipeline.lifecycle.on_drain(collections.stop_opening)
    operations = CollectionOperations(pipeline.collections, parts)
    pipeline.operations[SearchRequest] = Searches(operations)
    pipeline.operations[UpsertRequest] = Upserts(operations)
    pipeline.operations[DeleteRequest] = Deletes(operations)
