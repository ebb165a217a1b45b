"""The routes of Hugging Face's inference API, with their descriptions for OpenAPI."""

from collections.abc import Sequence
from dataclasses import fields
from functools import reduce
from typing import Any

from pydantic import ConfigDict, RootModel

from app.protocols.shared.body_codec import BodyCodec
from app.protocols.shared.codec import Codec
from app.protocols.shared.routes import Route, RouteDescription, SharedPathCodec
from extensions.clients.hugging_face.codec import SOUND_FORMAT, TASK_CODEC, HubRequest, HubRootCodec
from extensions.clients.tei.routes import TeiErrorResponse, root_routes
from frameworks.media.encoding import content_type_of
from frameworks.tasks.table import TASKS

_OF_RANKING = "texts"


class HubResponse(RootModel[Any]):
    """The prediction of the pipeline of the model's task; for a list of inputs a list of predictions."""

    model_config = ConfigDict(defer_build=True)


_DESCRIPTION = RouteDescription(
    "hugging face",
    "Run a model on the body of Hugging Face's inference API, or on a file",
    HubRequest,
    HubResponse,
    TeiErrorResponse,
    streams=True,
    files=(content_type_of(SOUND_FORMAT),),
)


def hub_routes(generating: BodyCodec, others: Sequence[Route]) -> list[Route]:
    """Return the routes of POST / and of POST /models/{name}.

    `generating`: of models that generate text. `others`: further routes of POST / by a field of the body.
    """
    root, *shared = (_with_tasks(route) for route in root_routes(generating))
    # A path with a parameter has one route, whose codec chooses by the body as those of POST / do.
    by_field = [each for each in (*shared, *others) if each.field != _OF_RANKING]
    codec: Codec = reduce(lambda first, each: SharedPathCodec(first, each.codec, str(each.field)), by_field, root.codec)
    model = Route("/models/{name}", codec, _DESCRIPTION, others=frozenset({"GET", "HEAD", "DELETE"}))
    return [root, *shared, *others, model]


def _with_tasks(route: Route) -> Route:
    """Return the route with models of all tasks, if it serves the inputs of Hugging Face."""
    codec = route.codec
    if not isinstance(codec, BodyCodec) or route.field == _OF_RANKING or "embed" not in codec.tasks:
        return route
    values = {each.name: getattr(codec, each.name) for each in fields(codec) if each.init}
    return route._replace(codec=HubRootCodec(**values).with_tasks(TASKS, TASK_CODEC))
