"""The limits of tenants over real sockets: httpx, OpenAI's client, grpcio and raw requests."""

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import numpy as np
import openai
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.e2e.configs import EMBEDDED, onnx_entries
from tests.e2e.gates import RunGate
from tests.e2e.load import slow_model, wait_for_inflight
from tests.e2e.server import GRPC_PORT, RunningServer, assert_refused, free_port, serving, wait_until
from tests.e2e.test_buffered_bytes import Http2Connection, slow_reader, zeros
from tests.e2e.test_raw_sockets import connected, one_answer
from tests.e2e.triton_clients import grpc_channel
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.models import onnx_graphs

LIMITS: dict[str, dict[str, Any]] = {
    "operator": {"operator": True},
    **{name: {"requests_per_minute": 1} for name in ("minute-a", "minute-b", "minute-c", "minute-d")},
    **{name: {"tokens_per_minute": 1} for name in ("tokens-a", "tokens-b", "tokens-c")},
    "both": {"requests_per_minute": 600, "tokens_per_minute": 60_000},
    "one": {"max_concurrent_requests": 1},
    **{name: {"max_buffered_bytes": 64 * 1024} for name in ("bytes", "unread")},
}
"""Each test uses up the limits of a tenant of its own."""

INFER = "/models/m/infer"
BODY = {"input_data": [1.0, 2.0]}
SLOW = {"model_name": "slow", "input_data": [1.0, 2.0, 3.0, 4.0]}
# An amount of one a minute is there again after a minute: more requests than these pass on no machine.
MANY = 50


@dataclass(frozen=True, slots=True)
class Shared:
    """A server, a key of each tenant, and the gate of its model "slow"."""

    server: RunningServer
    keys: dict[str, MadeKey]
    gate: RunGate

    def post(self, tenant: str, path: str = INFER, body: object = BODY) -> httpx.Response:
        return self.server.client.post(path, json=body, headers=self.keys[tenant].headers)

    @contextmanager
    def openai(self, tenant: str) -> Iterator[openai.OpenAI]:
        key = self.keys[tenant].text
        with openai.OpenAI(base_url=f"{self.server.url}/v1", api_key=key, max_retries=0) as client:
            yield client

    def head(self, tenant: str, size: int, path: str = INFER) -> bytes:
        """Return the head of a request whose body has this size."""
        lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
        lines += [f"authorization: Bearer {self.keys[tenant].text}", f"content-length: {size}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("quotas")
    keys = {name: make_key(name) for name in LIMITS}
    write_keys(folder / "keys.toml", *keys.values())
    tenants = "".join(
        f'[[auth.tenants]]\nname = "{name}"\n' + "".join(f"{key} = {json.dumps(limits[key])}\n" for key in limits)
        for name, limits in LIMITS.items()
    )
    slow, gate = slow_model(folder)
    graphs = {"m": onnx_graphs.identity("float32", ("n",)), "wide": onnx_graphs.identity("float32", ("n", "m"))}
    models = EMBEDDED + slow + onnx_entries(folder, graphs)
    config = f'{models}[auth]\nkeys_file = "{folder / "keys.toml"}"\n{tenants}'
    with serving(folder, config, {GRPC_PORT: free_port()}, gated=True) as server:
        server.client.headers.update(keys["operator"].headers)
        server.wait_ready()
        yield Shared(server, keys, gate)
        wait_until(lambda: server.sample("roundhouse_inflight") == 0)
        assert server.sample("roundhouse_tenant_inflight") == server.sample("roundhouse_buffered_bytes") == 0


def first_refused(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """Ask until a response is not 200."""
    return next(answer for answer in (ask() for _ in range(MANY)) if answer.status_code != 200)


def test_requests_beyond_minute_are_refused(shared: Shared) -> None:
    before = shared.server.sample("roundhouse_rejected_total", reason="quota_exceeded")
    answer = first_refused(lambda: shared.post("minute-a"))
    message = assert_refused(
        answer, 429, "quota_exceeded", 'tenant "minute-a": requests_per_minute: expected at most 1'
    )
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    wait_s = re.search(r"try again in (\d+\.\d{3}) s$", message)
    assert wait_s is not None
    assert float(wait_s[1]) <= int(answer.headers["retry-after"])
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")], "only below /v1"
    assert shared.post("both").status_code == 200, "other tenants are not affected"
    assert shared.server.sample("roundhouse_rejected_total", reason="quota_exceeded") >= before + 1


def test_accepted_requests_keep_to_rate(shared: Shared) -> None:
    """Burst of 60, and 10 in a second: 4 threads send as many as they can."""
    started_s = time.monotonic()

    def flood(_: int) -> int:
        return sum(shared.post("both").status_code == 200 for _ in range(60))

    with ThreadPoolExecutor(4) as threads:
        accepted = sum(threads.map(flood, range(4)))
    most = 60 + 10 * (time.monotonic() - started_s)
    assert accepted <= most + 1


def test_openai_client_raises_rate_limit_error(shared: Shared) -> None:
    def embed(client: openai.OpenAI) -> Any:
        return client.embeddings.with_raw_response.create(model="minilm", input="a b c")

    with shared.openai("tokens-a") as client:
        first = embed(client)
        assert first.headers["x-ratelimit-limit-tokens"] == "1"
        assert first.headers["x-ratelimit-remaining-tokens"] == "0"
        # Five tokens, one of which was there: four minutes of debt and the one that was used.
        assert first.headers["x-ratelimit-reset-tokens"].startswith("4m")
        assert "x-ratelimit-limit-requests" not in first.headers
        with pytest.raises(openai.RateLimitError) as refused:
            embed(client)
    error = refused.value
    assert (error.code, error.type, error.status_code) == ("quota_exceeded", "rate_limit_error", 429)
    assert "tokens_per_minute: expected at most 1 tokens a minute" in error.message
    assert 180 < int(error.response.headers["retry-after"]) <= 300
    assert error.response.headers["x-ratelimit-remaining-tokens"] == "0"


def test_text_and_prompt_use_tokens(shared: Shared) -> None:
    with shared.openai("tokens-b") as client:
        stream = client.chat.completions.with_raw_response.create(
            model="tiny-llama", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
        )
        assert stream.headers["x-ratelimit-limit-tokens"] == "1"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream.parse() if chunk.choices)
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny-llama", prompt="A", max_tokens=1)
    # Eight generated tokens and the prompt are a debt of more than eight minutes.
    assert int(refused.value.response.headers["retry-after"]) > 8 * 60 - 60


def test_both_limits_are_in_headers(shared: Shared) -> None:
    answer = shared.post("both", "/v1/embeddings", {"model": "minilm", "input": "a"})
    limits = {name: answer.headers[f"x-ratelimit-limit-{name}"] for name in ("requests", "tokens")}
    assert limits == {"requests": "600", "tokens": "60000"}
    assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 6000
    assert re.fullmatch(r"(\d+m)?[\d.]+m?s", answer.headers["x-ratelimit-reset-tokens"])


def infer_request() -> service_pb2.ModelInferRequest:
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[2])
    numbers = np.array([1, 2], np.float32).tobytes()
    return service_pb2.ModelInferRequest(model_name="m", inputs=[tensor], raw_input_contents=[numbers])


def test_grpc_call_has_same_message(shared: Shared) -> None:
    over_http = first_refused(lambda: shared.post("minute-b")).json()["error"]["message"]
    with grpc_channel(shared.server) as channel, pytest.raises(grpc.RpcError) as refused:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            infer_request(), metadata=shared.keys["minute-b"].metadata
        )
    call: Any = refused.value
    assert call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    without_time = re.compile(r"[\d.]+ s$")
    assert without_time.sub("", call.details()) == without_time.sub("", over_http)


def test_each_message_of_stream_counts(shared: Shared) -> None:
    with grpc_channel(shared.server) as channel:
        answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter([infer_request()] * MANY), metadata=shared.keys["minute-c"].metadata
        )
        errors = [answer.error_message for answer in answers]
    assert not errors[0]
    assert any('tenant "minute-c": requests_per_minute' in error for error in errors)


def test_refused_before_body_is_read(shared: Shared) -> None:
    first_refused(lambda: shared.post("minute-d"))
    with connected(shared.server) as connection:
        connection.sendall(shared.head("minute-d", 1_000_000))
        status, _, body = one_answer(connection)
    assert (status, json.loads(body)["error"]["code"]) == (429, "quota_exceeded")


def test_place_is_returned_by_every_end(shared: Shared) -> None:
    """A request runs; another is refused. After the first has ended or was cancelled, the next one is accepted."""
    with ThreadPoolExecutor(1) as threads:
        with shared.gate.closed():
            running = threads.submit(shared.post, "one", "/infer", SLOW)
            wait_for_inflight(shared.server, 1)
            answer = shared.post("one")
            assert_refused(answer, 429, "quota_exceeded", "max_concurrent_requests: expected at most 1", "got 1 and 1")
            assert int(answer.headers["retry-after"]) >= 1
            assert shared.server.sample("roundhouse_tenant_inflight", tenant="one") == 1
        assert running.result().status_code == 200
    body = json.dumps(SLOW).encode()
    with shared.gate.closed():
        with connected(shared.server) as connection:
            connection.sendall(shared.head("one", len(body), "/infer") + body)
            wait_for_inflight(shared.server, 1)
        # The run that began goes on: its caller is gone, and the place is free.
        wait_for_inflight(shared.server, 0)
        with connected(shared.server) as connection:
            connection.sendall(shared.head("one", 2))
            connection.sendall(b"{}")
            assert one_answer(connection)[0] == 400
    wait_until(lambda: shared.post("one").status_code == 200)


def test_slow_body_holds_no_place(shared: Shared) -> None:
    body = json.dumps(BODY).encode()
    with connected(shared.server) as connection:
        connection.sendall(shared.head("one", len(body)) + body[:5])
        wait_until(lambda: shared.post("one").status_code == 200)
        with shared.gate.closed(), ThreadPoolExecutor(1) as threads:
            running = threads.submit(shared.post, "one", "/infer", SLOW)
            wait_for_inflight(shared.server, 1)
            connection.sendall(body[5:])
            status, _, refused = one_answer(connection)
            assert (status, json.loads(refused)["error"]["code"]) == (429, "quota_exceeded"), "no place when it is read"
            shared.gate.open()
            assert running.result().status_code == 200


def test_bytes_of_tenant_are_bounded(shared: Shared) -> None:
    """A body that is served alone is accepted; beside another one it is refused by its declared length."""
    numbers = {"input_data": [1.0] * 20_000}
    assert shared.post("bytes", body=numbers).status_code == 200
    with connected(shared.server) as first:
        first.sendall(shared.head("bytes", 200_000) + b"[" * 40_000)
        wait_until(lambda: shared.server.sample("roundhouse_buffered_bytes") >= 40_000)
        with connected(shared.server) as second:
            second.sendall(shared.head("bytes", 30_000))
            status, headers, body = one_answer(second)
        assert (status, headers["retry-after"]) == (429, "1")
        assert 'tenant "bytes": max_buffered_bytes: expected at most 65536' in json.loads(body)["error"]["message"]
        assert shared.post("operator", body=numbers).status_code == 200, "other tenants are not affected"
    wait_until(lambda: shared.post("bytes", body=numbers).status_code == 200)


def test_tokenizing_uses_no_tokens(shared: Shared) -> None:
    """Tokenizing alone uses no tokens of the tenant."""
    for _ in range(3):
        answer = shared.post("tokens-c", "/v1/tokenize", {"model": "tiny-llama", "prompt": "a b c d"})
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-remaining-tokens"] == "1"
    assert shared.post("tokens-c", "/models/minilm/infer", {"text": "a b c"}).status_code == 200
    refused = shared.post("tokens-c", "/v1/tokenize", {"model": "tiny-llama", "prompt": "a b c d"})
    assert_refused(refused, 429, "quota_exceeded", "tokens_per_minute")


def assert_unread_bytes_count(shared: Shared, least: int) -> None:
    """Check that the tenant "unread" has no bytes left, while its request is over."""
    gauge = "roundhouse_buffered_bytes"
    wait_until(lambda: shared.server.sample(gauge) > least and shared.server.sample("roundhouse_inflight") == 0)
    numbers = {"input_data": [1.0] * 10_000}
    assert_refused(shared.post("unread", body=numbers), 429, "quota_exceeded", "max_buffered_bytes")
    assert shared.post("operator", body=numbers).status_code == 200, "other tenants are not affected"


def test_unread_http_response_counts_for_tenant(shared: Shared) -> None:
    body = zeros(3 * 2**20)
    with slow_reader(shared.server) as connection:
        head = shared.head("unread", len(body), "/v2/models/wide/infer")
        connection.sendall(head.replace(b"\r\n\r\n", b"\r\ninference-header-content-length: 400\r\n\r\n") + body)
        assert_unread_bytes_count(shared, 2**20)
    wait_until(lambda: shared.post("unread", body={"input_data": [1.0] * 10_000}).status_code == 200)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_unread_grpc_response_counts_for_tenant(method: str, shared: Shared) -> None:
    message = service_pb2.ModelInferRequest(model_name="wide", raw_input_contents=[bytes(60_000)])
    message.inputs.add(name="x", datatype="FP32", shape=[1, 15_000])
    with socket.create_connection(("127.0.0.1", shared.server.grpc_port)) as connection:
        client = Http2Connection(connection)
        path = f"/inference.GRPCInferenceService/{method}"
        client.call(1, path, message.SerializeToString(), shared.keys["unread"].metadata)
        assert_unread_bytes_count(shared, 59_000)
    wait_until(lambda: shared.post("unread", body={"input_data": [1.0] * 10_000}).status_code == 200)
