"""Answer the calls over gRPC of a worker that are no inference: it forwards them to the supervisor."""

from app.grpc import messages
from app.grpc.call import GrpcError
from app.grpc.handler import as_grpc_error
from app.grpc.management import REQUESTS, Answer
from app.grpc.messages import Message, parse
from app.observability.metrics import RequestRecord
from app.protocols.shared.errors import to_http
from app.workers.forwarding import MAX_CALLS, Applied, Places, SupervisorLost
from app.workers.messages import GrpcAnswer, GrpcCall
from app.workers.principal_serialization import principal_of, sender_of
from frameworks.core.channel.messages import ChannelLost
from frameworks.models.replicas.control import ControlLink


class ForwardedCalls:
    """Ask the supervisor, in a worker. Owned by the event loop."""

    def __init__(self, link: ControlLink) -> None:
        self._link = link

    async def answer(self, request: Message, record: RequestRecord) -> bytes:
        """Implement Answer of app/grpc/management.py. Whether the process is alive is answered here."""
        if isinstance(request, messages.ServerLiveRequest):
            live: bytes = messages.ServerLiveResponse(live=True).SerializeToString()
            return live
        sender, content = sender_of(record.principal), request.SerializeToString()
        try:
            reply = await self._link.ask(
                lambda number: GrpcCall(number, sender, record.request_id, record.path, content)
            )
        except ChannelLost:
            # Clients of gRPC call again for this status, and not for that of an overloaded server.
            error = SupervisorLost()
            raise GrpcError("UNAVAILABLE", error.message, to_http(error).status, to_http(error).code) from None
        assert isinstance(reply, GrpcAnswer)
        if reply.message is None:
            raise GrpcError(reply.code, reply.text, reply.status, reply.reason)
        return reply.message


class CallServer:
    """Answer the forwarded calls in the supervisor. A call ends if its worker withdraws it, or is lost.

    Owned by the event loop.
    """

    def __init__(self, answer: Answer, applied: Applied) -> None:
        """`answer`: of ManagementCalls."""
        self._respond = answer
        self._applied = applied
        self._places = Places(MAX_CALLS)

    def serve(self, link: ControlLink) -> None:
        """Answer the calls of a worker. Called before its link is open."""
        link.answer(GrpcCall, self._answer)

    async def _answer(self, call: GrpcCall) -> GrpcAnswer:
        """Return the response when all workers have applied what it says. Raises Overloaded."""
        with self._places:
            answer = await self._outcome(call)
            await self._applied()
            return answer

    async def _outcome(self, call: GrpcCall) -> GrpcAnswer:
        record = RequestRecord(call.request_id, "gRPC", call.path, 0.0)
        record.principal = principal_of(call.sender)
        try:
            return GrpcAnswer(call.id, await self._respond(parse(REQUESTS[call.path], call.message), record))
        except Exception as error:  # noqa: BLE001 - the last handler before the worker
            status = as_grpc_error(error, record)
            return GrpcAnswer(call.id, None, status.code, status.message, status.status, status.reason)
