"""The ASGI application: inference requests go to the endpoint, all others to FastAPI, which describes all routes."""

from starlette.types import ASGIApp

from app.auth.authenticator import Authenticator
from app.http.endpoint import Endpoint
from app.http.gate import HttpGate
from app.http.middleware import AdminMiddleware
from app.http.origins import OriginPolicy, OriginRules
from app.http.prefixes import PathPrefixes, PrefixRules
from app.inference.pipeline import Pipeline
from app.protocols.shared.routes import RouteTable


def build_app(
    pipeline: Pipeline,
    table: RouteTable,
    admin: ASGIApp,
    rules: OriginRules,
    authenticator: Authenticator | None,
    has_page: bool = False,
    prefixes: PrefixRules | None = None,
) -> Endpoint:
    """Return the application. `table`: inference routes. `admin`: answers all other requests.

    `authenticator`: of every request; None: no request needs a key. `has_page`: whether `admin` serves the web page,
    which needs no key. `prefixes`: of the paths.
    """
    origins, byte_limit = OriginPolicy(rules), pipeline.bounds.requests.byte_limit
    middleware = AdminMiddleware(admin, pipeline.observer, table, origins, byte_limit)
    gate = None
    if authenticator is not None:
        gate = HttpGate(authenticator, pipeline.observer, table, origins, has_page)
    return Endpoint(
        pipeline, table, middleware, origins, gate, PathPrefixes(prefixes) if prefixes and any(prefixes) else None
    )
