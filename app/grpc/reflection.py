"""Server reflection: what grpcurl and its like ask, to know which calls and messages there are."""

from collections.abc import AsyncIterator, Iterable

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from app.grpc.call import Call
from app.grpc.messages import POOL, parse

# Of the same messages; clients ask for the first, and for the second where it is not there.
REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


class ReflectionCalls:
    """`ServerReflectionInfo`, answered by grpcio's own servicer from a pool of what this server speaks."""

    def __init__(self, services: Iterable[str]) -> None:
        """`services`: of inference.proto and grpc.health.v1."""
        pool = descriptor_pool.DescriptorPool()
        for descriptor in (POOL.FindFileByName("inference.proto"), health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
            file = descriptor_pb2.FileDescriptorProto()
            descriptor.CopyToProto(file)
            pool.AddSerializedFile(file.SerializeToString())
        self._servicer = reflection.aio.ReflectionServicer([*services, REFLECTION_SERVICES[1]], pool)

    async def server_reflection_info(self, requests: AsyncIterator[bytes], call: Call) -> AsyncIterator[bytes]:
        async for response in self._servicer.ServerReflectionInfo(_parsed(requests), None):
            yield response.SerializeToString()


async def _parsed(requests: AsyncIterator[bytes]) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for request in requests:
        yield parse(reflection_pb2.ServerReflectionRequest, request)
