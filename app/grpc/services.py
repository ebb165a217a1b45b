"""Which calls there are: full method name → handler."""

from app.admin.open_inference.management import Management
from app.grpc.call import Stream, Unary
from app.grpc.handler import GrpcHandler
from app.grpc.health import HEALTH_SERVICE, HealthCalls
from app.grpc.infer import InferCalls
from app.grpc.management import ManagementCalls
from app.grpc.messages import INFERENCE_SERVICE, PREDICT_SERVICE
from app.grpc.predict import PredictCalls
from app.grpc.reflection import REFLECTION_SERVICES, ReflectionCalls
from app.inference.pipeline import Pipeline

_SERVICES = (INFERENCE_SERVICE, PREDICT_SERVICE, HEALTH_SERVICE)


def unary_calls(pipeline: Pipeline, default_model: str | None) -> dict[str, Unary]:
    """`default_model`: of a Predict that names none."""
    asking, management = GrpcHandler(pipeline), Management(pipeline)
    calls: dict[str, Unary] = {
        f"/{INFERENCE_SERVICE}/ModelInfer": InferCalls(asking).model_infer,
        f"/{PREDICT_SERVICE}/Predict": PredictCalls(asking, default_model).predict,
        f"/{HEALTH_SERVICE}/Check": _health(pipeline).check,
    }
    for name, handler in ManagementCalls(management, pipeline.observer).table().items():
        calls[f"/{INFERENCE_SERVICE}/{name}"] = handler
    return calls


def stream_calls(pipeline: Pipeline) -> dict[str, Stream]:
    """Those in which either side may send more than one message."""
    reflection = ReflectionCalls(_SERVICES)
    calls: dict[str, Stream] = {
        f"/{INFERENCE_SERVICE}/ModelStreamInfer": InferCalls(GrpcHandler(pipeline)).model_stream_infer,
        f"/{HEALTH_SERVICE}/Watch": _health(pipeline).watch,
    }
    for service in REFLECTION_SERVICES:
        calls[f"/{service}/ServerReflectionInfo"] = reflection.server_reflection_info
    return calls


def _health(pipeline: Pipeline) -> HealthCalls:
    management = Management(pipeline)
    return HealthCalls(_SERVICES, lambda: management.why_not_ready() is None)
