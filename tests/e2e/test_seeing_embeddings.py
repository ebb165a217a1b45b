"""Models that embed texts and images alike over a real socket: pages, conversations, ranks, and refusals by field."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from frameworks.types import Array
from tests.e2e.server import WAIT_S, RunningServer, assert_refused, serving
from tests.e2e.test_vision import files_served
from tests.frameworks.pytorch.encoders.test_seeing_conversations import Reference, part_of
from tests.frameworks.pytorch.generation.vision.seeing import IMAGES, data_url, image
from tests.support.models.torch_folders import save_embedder
from tests.support.models.vision.catalogue import MAKERS
from tests.support.models.vision.retrieval import VECTOR_SIZE, add_modules, make_colqwen2
from tests.support.models.vision_folders import save_two_towers

pytestmark = pytest.mark.extended

TOLERANCE = 1e-4
QUERY = "the cat sat on the mat ."
URLS = [data_url(each) for each in IMAGES]
WIDE = image(3, (400, 300))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("seeing")
    for name in ("pages", "embedder", "clip"):
        (folder / name).mkdir()
    make_colqwen2(folder / "pages")
    MAKERS["qwen3_vl"](folder / "embedder")
    add_modules(folder / "embedder")
    save_two_towers(folder / "clip", "clip")
    entries = _entry("pages", folder / "pages") + _entry("embedder", folder / "embedder")
    entries += _entry("apart", folder / "embedder", 'isolation = "process"')
    entries += _entry("apart-pages", folder / "pages", 'isolation = "process"')
    entries += _entry("bounded", folder / "embedder", "max_images = 2\nmax_image_pixels = 10000")
    save_embedder(folder / "texts")
    entries += _entry("clip", folder / "clip") + _entry("texts", folder / "texts")
    entries += '[server]\nmedia_hosts = ["127.0.0.0/8"]\n'
    with serving(folder, entries) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def reference(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("reference")
    MAKERS["qwen3_vl"](folder)
    return Reference(folder)


def _entry(name: str, path: Path, more: str = "") -> str:
    return f'[[models.torch_models]]\nname = "{name}"\npath = "{path}"\ndtype = "f32"\n{more}\n'


def post(server: RunningServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=WAIT_S, trust_env=False, verify=False)


def ask(server: RunningServer, path: str, **body: Any) -> Any:
    answer = post(server, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def user(*parts: str) -> dict[str, Any]:
    """Return a message of texts and of images by URL."""
    content = [
        {"type": "image_url", "image_url": {"url": each}}
        if each.startswith(("data:", "http:"))
        else {"type": "text", "text": each}
        for each in parts
    ]
    return {"role": "user", "content": content}


def embedded(server: RunningServer, model: str, *parts: str, **options: Any) -> Array:
    [row] = ask(server, "/v1/embeddings", model=model, messages=[user(*parts)], **options)["data"]
    return np.array(row["embedding"])


@pytest.mark.parametrize("model", ["embedder", "apart"])
def test_messages_equal_reference(server: RunningServer, reference: Reference, model: str) -> None:
    expected = reference.row(part_of(IMAGES[0]), {"type": "text", "text": QUERY}, part_of(IMAGES[1]))
    np.testing.assert_allclose(embedded(server, model, URLS[0], QUERY, URLS[1]), expected, atol=TOLERANCE)
    [row] = ask(server, "/pooling", model=model, messages=[user(URLS[0], QUERY, URLS[1])])["data"]
    np.testing.assert_allclose(row["data"], expected, atol=TOLERANCE)


def test_input_texts_equal_reference_with_client(server: RunningServer, reference: Reference) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="embedder", input=[QUERY, "steam"])
    expected = [reference.row({"type": "text", "text": each}) for each in (QUERY, "steam")]
    np.testing.assert_allclose([each.embedding for each in answer.data], expected, atol=TOLERANCE)
    assert answer.usage.prompt_tokens > 20


def test_image_inputs_equal_reference(server: RunningServer, reference: Reference) -> None:
    expected = [reference.row(part_of(each)) for each in IMAGES]
    rows = ask(server, "/v1/embeddings", model="embedder", input=URLS, modality="image")["data"]
    np.testing.assert_allclose([each["embedding"] for each in rows], expected, atol=TOLERANCE)
    own = ask(server, "/infer", model_name="apart", image=URLS)["embeddings"]
    np.testing.assert_allclose(own, expected, atol=TOLERANCE)


def test_ending_of_request_replaces_default(server: RunningServer, reference: Reference) -> None:
    expected = reference.row(part_of(IMAGES[0]), add_generation_prompt=False)
    found = embedded(server, "embedder", URLS[0], add_generation_prompt=False)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    assistant = {"role": "assistant", "content": [{"type": "text", "text": ""}]}
    body = {"messages": [user(URLS[0]), assistant], "continue_final_message": True, "add_special_tokens": True}
    [row] = ask(server, "/v1/embeddings", model="embedder", **body)["data"]
    np.testing.assert_allclose(row["embedding"], reference.row(part_of(IMAGES[0])), atol=TOLERANCE)


def test_concurrent_callers_get_own_vectors(server: RunningServer) -> None:
    alone = [embedded(server, "embedder", url, QUERY) for url in URLS]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: embedded(server, "embedder", URLS[number % 3], QUERY), range(24)))
    for number, row in enumerate(found):
        np.testing.assert_allclose(row, alone[number % 3], atol=TOLERANCE)


@pytest.mark.parametrize("model", ["pages", "apart-pages"])
def test_pages_ranked_by_max_sim(server: RunningServer, model: str) -> None:
    found = ask(server, "/infer", model_name=model, image=URLS)
    pages = [np.array(each) for each in found["multi_embeddings"]]
    assert found["tokens"] == sum(map(len, pages))
    assert {each.shape[1] for each in pages} == {VECTOR_SIZE}
    [query] = ask(server, "/infer", model_name=model, text=QUERY)["multi_embeddings"]
    expected = [float((np.array(query) @ page.T).max(axis=1).sum()) for page in pages]
    documents = [{"image": url} for url in URLS]
    ranked = ask(server, "/v1/rerank", model=model, query=QUERY, documents=documents, return_documents=True)
    order = np.argsort(-np.array(expected)).tolist()
    assert [each["index"] for each in ranked["results"]] == order
    np.testing.assert_allclose(
        [each["relevance_score"] for each in ranked["results"]], [expected[i] for i in order], atol=1e-3
    )
    assert ranked["results"][0]["document"] == documents[order[0]]
    assert ranked["usage"]["prompt_tokens"] == sum(map(len, pages)) + len(query)
    pooled = ask(server, "/pooling", model=model, messages=[user(*URLS)], task="token_embed")["data"]
    np.testing.assert_allclose(pooled[1]["data"], pages[1], atol=TOLERANCE)


@pytest.mark.parametrize("model", ["embedder", "clip"])
def test_images_ranked_by_cosine(server: RunningServer, model: str) -> None:
    images = np.array(ask(server, "/infer", model_name=model, image=URLS)["embeddings"])
    [query] = ask(server, "/infer", model_name=model, text=QUERY)["embeddings"]
    documents = [{"image": url} for url in URLS]
    ranked = ask(server, "/v1/rerank", model=model, query=QUERY, documents=documents)["results"]
    scores = {each["index"]: each["relevance_score"] for each in ranked}
    np.testing.assert_allclose([scores[i] for i in range(3)], images @ np.array(query), atol=1e-3)


def test_texts_scored_by_cosine(server: RunningServer) -> None:
    rows = [
        np.array(each["embedding"])
        for each in ask(server, "/v1/embeddings", model="embedder", input=[QUERY, "steam"])["data"]
    ]
    [scored] = ask(server, "/v1/score", model="embedder", text_1=QUERY, text_2="steam")["data"]
    np.testing.assert_allclose(scored["score"], rows[0] @ rows[1], atol=1e-3)


def test_image_at_listed_host_is_fetched(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(IMAGES[0])
    with files_served(tmp_path) as base:
        fetched = embedded(server, "embedder", f"{base}/a.png", QUERY)
        absent = post(server, "/v1/embeddings", model="embedder", messages=[user(f"{base}/absent.png")])
    np.testing.assert_allclose(fetched, embedded(server, "embedder", URLS[0], QUERY), atol=1e-6)
    assert_refused(absent, 400, "invalid_input", "messages[0].content[0].image_url.url", "got the status 404")
    answer = post(server, "/v1/embeddings", model="embedder", messages=[user("http://192.0.2.1/a.png")])
    assert_refused(answer, 400, "invalid_input", "the server fetches no URL of it")


@pytest.mark.parametrize(
    ("model", "files", "field", "reason"),
    [
        ("bounded", [IMAGES[0]] * 3, "messages", "expected at most 2 images, got 3"),
        ("bounded", [WIDE], "messages[0].content[0].image_url.url", "expected at most 10000 pixels"),
        ("texts", [IMAGES[0]], "messages", "expected a model that reads images"),
        ("embedder", [b"no image"], "messages[0].content[0].image_url.url", "expected a file in"),
        ("embedder", [IMAGES[0][:200]], "messages[0].content[0].image_url.url", "got a damaged one"),
        ("pages", [IMAGES[0]], "model", "one with a vector for each token; post the images"),
    ],
)
def test_bad_messages_are_refused_by_field(
    server: RunningServer, model: str, files: list[bytes], field: str, reason: str
) -> None:
    answer = post(server, "/v1/embeddings", model=model, messages=[user(*map(data_url, files))])
    assert answer.status_code == 400, answer.text
    message = answer.json()["error"]["message"]
    assert message.startswith(f"{field}: ")
    assert reason in message


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/infer", {"model_name": "bounded", "image": URLS}, "image: expected at most 2 images, got 3"),
        ("/infer", {"model_name": "pages", "text": "a", "input_type": "document"}, 'input_type: expected "query"'),
        ("/infer", {"model_name": "pages", "inputs": {"text": ["a"]}}, "send the field text, or image"),
        ("/v1/rerank", {"model": "pages", "query": "a", "documents": ["b"]}, "expected images, as the model reads"),
        (
            "/v1/rerank",
            {"model": "texts", "query": "a", "documents": [{"image": URLS[0]}]},
            "documents: expected texts",
        ),
        ("/v1/rerank", {"model": "clip", "query": "a", "documents": ["b", {"image": URLS[0]}]}, "got 1 images and 1"),
        (
            "/v1/rerank",
            {"model": "clip", "query": "a", "documents": [{}]},
            "documents[0]",
        ),
        ("/v1/rerank", {"model": "clip", "query": "a", "documents": [{"image": "!"}]}, "documents[0].image: expected"),
        ("/v1/embeddings", {"model": "embedder", "input": [[1, 2]]}, "got token ids"),
        ("/v1/embeddings", {"model": "texts", "input": "a", "continue_final_message": True}, "continue_final_message:"),
        ("/v1/embeddings", {"model": "clip", "messages": [{"content": "a"}]}, "messages[0].content: expected an image"),
    ],
)
def test_bad_requests_are_refused_by_name(server: RunningServer, path: str, body: dict[str, Any], reason: str) -> None:
    answer = post(server, path, **body)
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]


def test_broken_image_names_document(server: RunningServer) -> None:
    documents = [{"image": URLS[0]}, {"image": data_url(IMAGES[0][:200])}]
    for model in ("pages", "clip"):
        answer = post(server, "/v1/rerank", model=model, query="a", documents=documents)
        assert_refused(answer, 400, "invalid_input", "documents[1]: expected a whole image file")


def test_models_describe_images(server: RunningServer) -> None:
    described = {each["name"]: each for each in server.client.get("/models").json()["models"]}
    vision = described["bounded"]["vision"]
    assert (vision["max_images"], vision["max_image_pixels"]) == (2, 10_000)
    assert vision["no_videos_because"] == "it embeds texts and images"
    assert described["pages"]["vision"] is None
    assert (described["pages"]["vectors"], described["embedder"]["vectors"]) == ("multi", "dense")
    assert described["pages"]["image"]["height"] is None
    assert described["pages"]["image"]["embedding_size"] == VECTOR_SIZE
    listed = {each["id"]: each["capabilities"] for each in server.client.get("/v1/models").json()["data"]}
    assert listed["embedder"] == ["embedding", "vision"]
