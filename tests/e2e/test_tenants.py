"""Tenants on one server: a hidden model is answered as an absent one; counts and caches are each tenant's own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.auth.principal import Scope
from app.grpc import messages
from tests.e2e.configs import onnx_entries
from tests.e2e.server import GRPC_PORT, MODELS, RunningServer, free_port, serving, wait_until
from tests.e2e.tenant_requests import GRPC_CALLS, HTTP_REQUESTS, LATE, SERVICE
from tests.support.keyring import MadeKey, make_key, write_keys
from tests.support.models import onnx_graphs

OPERATOR = make_key("ops")
RED, BLUE, GREEN, LIME = (make_key(name) for name in ("red", "blue", "green", "lime"))
RED_ONLY = make_key("red", models=("red-*",))
BLUE_VECTOR = make_key("blue", models=("blue-v*",))
NOTHING = make_key("blue", models=("nothing",))

LISTS = ("/models", "/v1/models", "/v2/models/stats", "/health", "/metrics", "/", "/openapi.json")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with five tenants. Models whose names begin with a tenant's are its own."""
    folder = tmp_path_factory.mktemp("shared")
    write_keys(folder / "keys.toml", OPERATOR, RED, BLUE, GREEN, LIME, RED_ONLY, BLUE_VECTOR, NOTHING)
    vectors = ("red-vector", "blue-vector", "common-vector", "common-cached")
    config = onnx_entries(folder, {name: onnx_graphs.identity("float32", None) for name in vectors})
    config += "cache = true\n"
    for name in ("red-llama", "common-llama"):
        config += f'[[models.torch_models]]\nname = "{name}"\npath = "{MODELS / "tiny-llama"}"\ndevice = "cpu"\n'
    config += f'[models]\nroots = ["{folder}"]\ndefault_model = "red-vector"\n[auth]\nmode = "required"\n'
    for name, keys in (
        ("ops", "operator = true"),
        ("red", 'models = ["red-*", "common-*"]'),
        ("blue", 'models = ["blue-*", "common-*", "nothing"]'),
        ("green", 'models = ["common-*"]\nshare_caches = true'),
        ("lime", 'models = ["common-*"]\nshare_caches = true'),
    ):
        config += f'[[auth.tenants]]\nname = "{name}"\n{keys}\n'
    with serving(folder, config, {GRPC_PORT: free_port()}) as server:
        yield server.wait_ready()
        server.check_log()


@pytest.fixture
def late(shared: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The body that registers LATE, which is deleted after the test."""
    yield {"framework": "onnx", "name": LATE, "path": registered_path(shared), "load": "lazy"}
    shared.client.delete(f"/models/{LATE}", headers=OPERATOR.headers)


def registered_path(server: RunningServer) -> str:
    detail = server.client.get("/models/red-vector", headers=OPERATOR.headers).json()
    return str(Path(detail["version_details"]["1"]["path"]))


def ask(server: RunningServer, key: MadeKey, method: str, path: str, body: Any = None) -> Any:
    """Send a request; return status, headers and body without what differs between two equal requests."""
    content = None if body is None else json.dumps(body).replace("{name}", LATE)
    headers = {"content-type": "application/json", "x-request-id": "same", **key.headers}
    response = server.client.request(method, path.replace("{name}", LATE), content=content, headers=headers)
    kept = {name: value for name, value in response.headers.items() if name not in ("date", "server-timing")}
    return response.status_code, kept, response.text


def call(server: RunningServer, key: MadeKey, path: str, request: Any, response: Any, fields: dict[str, Any]) -> Any:
    """Send one message; return the messages that came back, and code and details of the status."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        send: Any = channel.stream_stream(path, lambda one: one.SerializeToString(), response.FromString)
        received = send(iter([request(**fields)]), metadata=key.metadata, timeout=60)
        try:
            return list(received), None, None
        except grpc.RpcError as error:
            return [], error.code(), error.details()


def post(server: RunningServer, key: MadeKey, path: str, **body: Any) -> Any:
    response = server.client.post(path, json=body, headers=key.headers)
    assert response.status_code == 200, response.text
    return response.json()


def metrics(server: RunningServer, key: MadeKey) -> dict[str, list[Any]]:
    page = server.client.get("/metrics", headers=key.headers).text
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def total(server: RunningServer, key: MadeKey, name: str, **labels: str) -> float:
    samples = metrics(server, key).get(name, [])
    return float(sum(each.value for each in samples if labels.items() <= each.labels.items()))


class TestHiddenModels:
    def test_hidden_model_is_answered_as_absent(self, shared: RunningServer, late: dict[str, Any]) -> None:
        def answers() -> list[Any]:
            over_http = [ask(shared, BLUE, *request) for request in HTTP_REQUESTS]
            return over_http + [call(shared, BLUE, *each) for each in GRPC_CALLS]

        absent = answers()
        assert [status for status, *_ in absent[: len(HTTP_REQUESTS)]] == [404] * len(HTTP_REQUESTS)
        assert ask(shared, OPERATOR, "POST", "/models", late)[0] == 201
        registered = ask(shared, RED, "GET", f"/models/{LATE}")
        assert registered[0] == 200
        assert answers() == absent
        assert ask(shared, RED, "GET", f"/models/{LATE}") == registered, "nothing was loaded, counted or used"
        post(shared, RED, f"/models/{LATE}/infer", input_data=[1])
        assert answers() == absent, "also when it is loaded"

    def test_lists_leave_hidden_models_out(self, shared: RunningServer) -> None:
        for path in LISTS:
            page = shared.client.get(path, headers=BLUE.headers).text
            assert "red-" not in page, path
            assert ("blue-vector" in page) == (path not in ("/", "/openapi.json")), path
        for body in ({}, {"ready": True}):
            index = shared.client.post("/v2/repository/index", json=body, headers=BLUE.headers).json()
            assert {each["name"] for each in index} == {
                "blue-vector", "common-vector", "common-cached", "common-llama"
            }  # fmt: skip
        for method in ("RepositoryIndex", "ModelStatistics"):
            request, response = (getattr(messages, f"{method}{kind}") for kind in ("Request", "Response"))
            (listed,), _, _ = call(shared, BLUE, SERVICE + method, request, response, {})
            assert "red-" not in str(listed)
            assert "blue-vector" in str(listed)

    def test_errors_suggest_only_visible_names(self, shared: RunningServer) -> None:
        _, _, text = ask(shared, BLUE, "GET", "/models/red-vectors")
        assert "red-vector," not in text
        assert "blue-vector" in text
        assert "red-vector" in ask(shared, RED, "GET", "/models/red-vectors")[2]
        assert "no model is registered" in ask(shared, NOTHING, "GET", "/models/red-vector")[2]

    def test_key_patterns_narrow_those_of_tenant(self, shared: RunningServer) -> None:
        listed = shared.client.get("/models", headers=RED_ONLY.headers).json()["models"]
        assert {each["name"] for each in listed} == {"red-vector", "red-llama"}
        assert ask(shared, RED_ONLY, "POST", "/infer", {"model_name": "common-vector", "input_data": [1]})[0] == 404


@pytest.mark.extended
def test_readiness_without_key_names_no_model(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys.toml", OPERATOR)
    config = f'[[models.onnx_models]]\nname = "broken"\npath = "{tmp_path / "absent"}"\n[auth]\nmode = "required"\n'
    with serving(tmp_path, config) as server:
        server.wait_for_log("model failed to load")
        for path in ("/health/ready", "/v2/health/ready"):
            page = server.client.get(path)
            assert page.status_code == 503
            assert "broken" not in page.text
        health = server.client.get("/health", headers=OPERATOR.headers).json()
        assert (health["status"], health["models"]) == ("degraded", {"broken": "failed"})


class TestDefaults:
    def test_predict_uses_visible_default(self, shared: RunningServer) -> None:
        predict = f"/{messages.PREDICT_SERVICE}/Predict", messages.PredictRequest, messages.PredictResponse
        (answer,), code, _ = call(shared, RED, *predict, {"data": [3]})
        assert (list(answer.predictions), code) == ([3], None)
        answers, code, details = call(shared, BLUE, *predict, {"data": [3]})
        assert (answers, code) == ([], grpc.StatusCode.INVALID_ARGUMENT)
        assert "red-" not in details
        assert "blue-vector" in details
        (answer,), code, _ = call(shared, BLUE_VECTOR, *predict, {"data": [3]})
        assert (list(answer.predictions), code) == ([3], None)

    def test_only_visible_generator_is_default(self, shared: RunningServer) -> None:
        body = {"prompt": "a", "max_tokens": 1}
        assert post(shared, RED_ONLY, "/inference", **body)["model_name"] == "red-llama"
        assert post(shared, BLUE, "/inference", **body)["model_name"] == "common-llama"
        status, _, text = ask(shared, RED, "POST", "/inference", body)
        assert status == 400
        assert "red-llama, common-llama" in text
        status, _, text = ask(shared, BLUE_VECTOR, "POST", "/inference", body)
        assert status == 400
        assert "llama" not in text


class TestManagement:
    def test_registering_foreign_name_is_forbidden(self, shared: RunningServer, late: dict[str, Any]) -> None:
        for name in (LATE, "red-vector", "green-new"):
            status, _, text = ask(shared, BLUE, "POST", "/models", late | {"name": name})
            assert (status, json.loads(text)["error"]["code"]) == (403, "forbidden")
        assert ask(shared, BLUE, "POST", "/models", late | {"name": "blue-vector"})[0] == 409
        assert ask(shared, RED, "POST", "/models", late)[0] == 201

    def test_visible_models_are_managed(self, shared: RunningServer, late: dict[str, Any]) -> None:
        assert ask(shared, RED, "POST", "/models", late)[0] == 201
        for method, path in (("POST", "/models/{name}/load"), ("POST", "/models/{name}/unload")):
            assert ask(shared, RED, method, path)[0] == 200
        assert ask(shared, RED, "DELETE", "/models/{name}")[0] == 200
        assert ask(shared, RED, "GET", "/models/{name}")[0] == 404


class TestCounts:
    def test_tenants_see_only_their_requests(self, shared: RunningServer) -> None:
        def seen(key: MadeKey) -> tuple[Any, ...]:
            model = shared.client.get("/models/common-vector", headers=key.headers).json()
            (statistics,) = shared.client.get("/v2/models/common-vector/stats", headers=key.headers).json()[
                "model_stats"
            ]
            counts = metrics(shared, key)
            return (
                model["requests"]["total"],
                model["last_used"] is not None,
                statistics["inference_stats"]["success"]["count"],
                statistics["inference_count"],
                statistics["last_inference"] > 0,
                sum(each.value for each in counts.get("roundhouse_request_seconds_count", ()) if is_shared(each)),
                sum(each.value for each in counts.get("roundhouse_requests_total", ()) if is_shared(each)),
            )

        def is_shared(sample: Any) -> bool:
            return bool(sample.labels["model"] == "common-vector")

        assert seen(BLUE) == seen(GREEN) == (0, False, 0, 0, False, 0, 0)
        for _ in range(3):
            post(shared, RED, "/models/common-vector/infer", input_data=[1])
        assert seen(RED) == seen(OPERATOR) == (3, True, 3, 3, True, 3, 3)
        assert seen(BLUE) == seen(GREEN) == (0, False, 0, 0, False, 0, 0)
        post(shared, GREEN, "/models/common-vector/infer", input_data=[1])
        assert seen(GREEN) == (1, True, 1, 1, True, 1, 1)
        assert seen(RED)[0] == 3
        assert seen(OPERATOR)[0] == 4

    def test_health_counts_own_requests(self, shared: RunningServer) -> None:
        def counted(key: MadeKey) -> Any:
            return shared.client.get("/health", headers=key.headers).json()["metrics"]["requests_total"]

        before = {key: counted(key) for key in (LIME, BLUE, OPERATOR)}
        post(shared, LIME, "/models/common-vector/infer", input_data=[1])
        assert ask(shared, LIME, "POST", "/infer", {"model_name": "absent", "input_data": [1]})[0] == 404
        assert {key: counted(key) - count for key, count in before.items()} == {LIME: 2, BLUE: 0, OPERATOR: 2}

    def test_metrics_have_a_label_of_tenants(self, shared: RunningServer) -> None:
        post(shared, LIME, "/models/common-vector/infer", input_data=[1])
        generated = ("roundhouse_tokens_generated_total", "roundhouse_prompt_tokens_total")
        before = [total(shared, OPERATOR, name, tenant="lime") for name in generated]
        answer = post(shared, LIME, "/v1/completions", model="common-llama", prompt="a b c", max_tokens=3)
        usage = [answer["usage"]["completion_tokens"], answer["usage"]["prompt_tokens"]]
        wait_until(
            lambda: (
                [total(shared, OPERATOR, name, tenant="lime") for name in generated]
                == [one + other for one, other in zip(before, usage, strict=True)]
            )
        )
        assert total(shared, LIME, "roundhouse_requests_total", tenant="lime", model="common-vector", code="200") > 0
        assert ask(shared, BLUE, "POST", "/models/common-vector/load")[0] == 200
        for key, tenant in ((LIME, "lime"), (BLUE, "blue")):
            tenants = {
                each.labels["tenant"] for samples in metrics(shared, key).values() for each in samples
                if "tenant" in each.labels
            }  # fmt: skip
            assert tenants <= {tenant}
        assert shared.client.get("/models").status_code == 401
        seen = {each.labels["tenant"] for each in metrics(shared, OPERATOR)["roundhouse_requests_total"]}
        assert seen <= {"red", "blue", "green", "lime", "ops", ""}

    def test_device_seconds_are_charged_to_tenant(self, shared: RunningServer) -> None:
        name = "roundhouse_tenant_device_seconds_total"
        labels = {"tenant": "blue", "model": "blue-vector"}
        before = {key: total(shared, key, name, **labels) for key in (BLUE, OPERATOR)}
        post(shared, BLUE, "/models/blue-vector/infer", input_data=[1])
        used = [total(shared, key, name, **labels) - seconds for key, seconds in before.items()]
        assert used[0] == used[1] > 0
        assert total(shared, RED, name, **labels) == 0
        post(shared, LIME, "/v1/completions", model="common-llama", prompt="a b", max_tokens=2)
        wait_until(lambda: total(shared, OPERATOR, name, tenant="lime", model="common-llama") > 0)

    def test_page_of_tenant_has_no_shared_series(self, shared: RunningServer) -> None:
        operators, tenants = metrics(shared, OPERATOR), metrics(shared, BLUE)
        left_out = {name for name in operators if name not in tenants and not name.endswith("_created")}
        assert left_out >= {
            "roundhouse_buffered_bytes", "roundhouse_cache_bytes", "roundhouse_cache_evictions_total",
            "roundhouse_tensor_pool_hits_total", "roundhouse_batch_size_count", "roundhouse_kv_cache_bytes",
            "roundhouse_prefix_cache_hit_tokens_total", "roundhouse_sequences", "roundhouse_connections",
            "roundhouse_auth_keys", "roundhouse_model_budget_bytes",
        }  # fmt: skip
        assert {"roundhouse_event_loop_lag_seconds_count", "roundhouse_device_memory_bytes"} <= tenants.keys()


class TestCaches:
    @staticmethod
    def hits(server: RunningServer, key: MadeKey) -> tuple[float, float]:
        names = ("roundhouse_cache_hits_total", "roundhouse_cache_misses_total")
        hits, misses = (total(server, key, name, model="common-cached") for name in names)
        return hits, misses

    def infer(self, server: RunningServer, key: MadeKey, number: int) -> None:
        assert post(server, key, "/models/common-cached/infer", input_data=[number])["output_data"] == [number]

    def test_results_are_cached_for_each_tenant(self, shared: RunningServer) -> None:
        for _ in range(2):
            self.infer(shared, RED, 7)
        self.infer(shared, BLUE, 7)
        assert (self.hits(shared, RED), self.hits(shared, BLUE)) == ((1, 1), (0, 1))

    def test_results_are_shared_on_request(self, shared: RunningServer) -> None:
        self.infer(shared, GREEN, 8)
        self.infer(shared, LIME, 8)
        assert (self.hits(shared, GREEN), self.hits(shared, LIME)) == ((0, 1), (1, 0))

    def test_prompts_are_cached_for_each_tenant(self, shared: RunningServer) -> None:
        def cached_tokens(key: MadeKey, prompt: str) -> int:
            usage = post(shared, key, "/v1/completions", model="common-llama", prompt=prompt, max_tokens=1)["usage"]
            found: int = usage["prompt_tokens_details"]["cached_tokens"]
            return found

        secret = "the secret plan of red is " * 8
        assert cached_tokens(RED, secret) == 0
        assert cached_tokens(RED, secret) > 0
        assert cached_tokens(BLUE, secret) == 0
        assert cached_tokens(GREEN, secret) == 0
        assert cached_tokens(LIME, secret) > 0
        assert cached_tokens(BLUE, secret) > 0


@pytest.mark.extended
def test_scopes_alone_do_not_show_other_tenants(shared: RunningServer) -> None:
    assert BLUE.key.scopes == frozenset(Scope)
    assert not [each for each in metrics(shared, BLUE)["roundhouse_model_state"] if "red" in each.labels["model"]]
