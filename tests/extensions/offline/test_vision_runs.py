"""Runs of a model that sees, in this process and at a server: their texts are those of /v1/chat/completions."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.cli.commands import main
from app.embedded.copy_tiny_vision import EXAMPLE
from tests.e2e.server import MODELS, WAIT_S, RunningServer, serving
from tests.e2e.test_vision import files_served
from tests.support.images import encoded
from tools.training.tiny_vision_tower import pictures_of

NAME, TEXTS = "tiny-vision", "tiny-llama"
QUESTION = "What is this?"
PICTURES = 3
ENTRY = f'[[models.torch_models]]\nname = "{NAME}"\npath = "{MODELS / NAME}"\nmax_images = 2\n'
HOSTS = '[server]\nmedia_hosts = ["127.0.0.0/8"]\n'
IMAGE = "messages[0].content[0].image_url.url: "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    texts = f'[[models.torch_models]]\nname = "{TEXTS}"\npath = "{MODELS / TEXTS}"\n'
    with serving(tmp_path_factory.mktemp("server"), ENTRY + texts + HOSTS) as running:
        yield running.wait_ready()
        running.check_log()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures, and files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    pictures = pictures_of(PICTURES, 78)
    for number in range(PICTURES):
        (folder / f"{number}.png").write_bytes(encoded(pictures.pixels[number], "PNG"))
    (folder / "star.jpg").write_bytes((MODELS / NAME / EXAMPLE).read_bytes())
    (folder / "torn.png").write_bytes((folder / "0.png").read_bytes()[:100])
    (folder / "notes.txt").write_text("no picture")
    return folder


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def asked(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


def chatted(server: RunningServer, model: str, messages: list[Any], **options: Any) -> str:
    """Return the answer of /v1/chat/completions."""
    body = {"model": model, "messages": messages, **options}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=WAIT_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def shown(path: Path) -> dict[str, Any]:
    return image(f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}")


def run(model: Path | str, source: Path, output: Path, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """Run the command; return the rows of its output."""
    assert main(["run", str(model), str(source), str(output), *words]) == status
    if output.suffix == ".parquet":
        rows: list[dict[str, Any]] = pq.read_table(output).to_pylist()
        return rows
    return rows_of(output) if output.exists() else []


def rows_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_with_images_equal_chat(server: RunningServer, photos: Path, tmp_path: Path) -> None:
    names = ["star.jpg", *(f"{number}.png" for number in range(PICTURES))]
    source = photos / "prompts.csv"
    source.write_text("question,photo\n" + "".join(f"{QUESTION},{name}\n" for name in [*names, ""]))
    words = ["--columns", "prompt=question,image=photo"]
    expected = [chatted(server, NAME, asked(shown(photos / name))) for name in names]
    expected.append(chatted(server, NAME, asked()))
    assert expected[0] == "A red star."
    for model, more in ((MODELS / NAME, []), (NAME, ["--url", server.url])):
        rows = run(model, source, tmp_path / f"{len(more)}.jsonl", *words, *more)
        assert [row["generated"] for row in rows] == expected
        assert [row["photo"] for row in rows] == [*names, None]
        assert {row["finish_reason"] for row in rows} == {"stop"}


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_conversations_equal_chat(server: RunningServer, photos: Path, tmp_path: Path, form: str) -> None:
    pair = [{"type": "image", "path": f"{number}.png"} for number in range(2)]
    first = asked(shown(photos / "0.png"))
    reply = {"role": "assistant", "content": [{"type": "text", "text": "A red circle."}]}
    chats = [asked(*pair), [*first, reply, *asked(image(str(photos / "star.jpg")))], asked()]
    source = tmp_path / f"in.{form}"
    if form == "jsonl":
        written(source, [{"messages": chat} for chat in chats])
    elif form == "csv":
        source.write_text("messages\n" + "".join('"' + json.dumps(chat).replace('"', '""') + '"\n' for chat in chats))
    else:
        pq.write_table(pa.table({"messages": chats}), source)
    words = ["--columns", "messages", "--file-root", str(photos), "--options", '{"max_tokens": 20}']
    rows = run(NAME, source, tmp_path / "out.parquet", *words, "--url", server.url)
    sent = [
        asked(shown(photos / "0.png"), shown(photos / "1.png")),
        [*first, reply, *asked(shown(photos / "star.jpg"))],
        asked(),
    ]
    assert [row["generated"] for row in rows] == [chatted(server, NAME, each, max_tokens=20) for each in sent]


@pytest.mark.parametrize("is_local", [True, False])
def test_bad_rows_fail_alone(server: RunningServer, photos: Path, tmp_path: Path, is_local: bool) -> None:
    chats = [
        asked(image("star.jpg")),
        asked(image("gone.png")),
        asked(image("torn.png")),
        asked(image("notes.txt")),
        asked(image("../star.jpg")),
        asked(*[image("star.jpg")] * 3),
        asked(image("https://example.org/star.jpg")),
        [{"role": "user", "content": [{"type": "video", "path": "a.mp4"}]}],
        [{"content": "no role"}],
        [],
        asked(image("0.png")),
    ]
    source, bad = written(photos / "bad.jsonl", [{"messages": chat} for chat in chats]), tmp_path / "errors"
    config = tmp_path / "config.toml"
    config.write_text(ENTRY)
    more = ["--config", str(config)] if is_local else ["--url", server.url]
    words = ["--columns", "messages", "--errors", str(bad), *more]
    rows = run(NAME, source, tmp_path / "out.jsonl", *words, status=3)
    assert [row["messages"] for row in rows] == [chats[0], chats[-1]]
    assert rows[0]["generated"] == "A red star."
    errors = {each["row"]: each["reason"] for each in rows_of(bad)}
    assert list(errors) == list(range(2, 11))
    for row, expected in {
        2: f"{IMAGE}expected a file, got a path without one",
        3: f"{IMAGE}expected a whole",
        4: f"{IMAGE}expected a file in",
        5: f"{IMAGE}expected a path below the folder of the files",
        6: "messages: expected at most 2 images, got 3; send fewer",
        7: f"{IMAGE}expected base64 or a data URL, got a URL with the host example.org, which is not in",
        8: "messages[0].content[0]",
        9: "messages[0].role",
        10: "messages: expected",
    }.items():
        assert errors[row].startswith(expected), errors[row]


@pytest.mark.parametrize("is_local", [True, False])
def test_image_at_listed_host_is_read(server: RunningServer, photos: Path, tmp_path: Path, is_local: bool) -> None:
    config = tmp_path / "config.toml"
    config.write_text(ENTRY + HOSTS)
    more = ["--config", str(config)] if is_local else ["--url", server.url]
    with files_served(photos) as url:
        source = written(tmp_path / "in.jsonl", [{"prompt": QUESTION, "images": [f"{url}/star.jpg"]}])
        (row,) = run(NAME, source, tmp_path / "out.jsonl", "--columns", "prompt,images", *more)
    assert row["generated"] == "A red star."


def test_images_in_parquet_are_read(server: RunningServer, photos: Path, tmp_path: Path) -> None:
    source, bad = tmp_path / "in.parquet", tmp_path / "errors"
    files = [(photos / name).read_bytes() for name in ("star.jpg", "torn.png")]
    pq.write_table(pa.table({"prompt": [QUESTION] * 2, "image": files}), source)
    words = ["--columns", "prompt,image", "--errors", str(bad), "--url", server.url]
    (row,) = run(NAME, source, tmp_path / "out.parquet", *words, status=3)
    assert (row["generated"], "image" in row) == ("A red star.", False)
    assert rows_of(bad)[0]["reason"].startswith("image[0]: expected a whole")


def test_texts_alone_equal_chat(server: RunningServer, tmp_path: Path) -> None:
    chats = [[{"role": "user", "content": f"What is a {word}?"}] for word in ("list", "test", "module")]
    source = written(tmp_path / "in.jsonl", [{"chat": chat} for chat in chats])
    options = {"temperature": 0, "max_tokens": 12}
    words = ["--columns", "messages=chat", "--options", json.dumps(options)]
    expected = [chatted(server, TEXTS, chat, **options) for chat in chats]
    for model, more in ((MODELS / TEXTS, []), (TEXTS, ["--url", server.url])):
        rows = run(model, source, tmp_path / f"{len(more)}.jsonl", *words, *more)
        assert [row["generated"] for row in rows] == expected
        assert all(0 < row["tokens_generated"] <= 12 for row in rows)


def test_prompts_alone_are_continued(server: RunningServer, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [{"prompt": "The module"}])
    shared = ["--options", '{"temperature": 0, "max_tokens": 5, "min_tokens": 3}', "--url", server.url]
    named = run(TEXTS, source, tmp_path / "a.jsonl", "--columns", "prompt", *shared)
    assert 3 <= named[0]["tokens_generated"] <= 5
    assert named == run(TEXTS, source, tmp_path / "b.jsonl", "--column", "prompt", *shared)


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        (NAME, ["--columns", "messages,prompt"], "--columns: expected messages alone, got prompt too; leave one of"),
        (NAME, ["--columns", "image"], "--columns: expected prompt and one of image, images, got image; correct it"),
        (NAME, ["--columns", "prompt,image,images"], "--columns: expected prompt and one of image, images, got prompt"),
        (NAME, ["--columns", "texts"], '--columns: expected messages, prompt, image, images, got "texts"; say'),
        (NAME, ["--columns", "messages=prompts"], 'column: expected one of prompt, messages, image, got "prompts"'),
        (NAME, ["--columns", "messages", "--options", '{"max_tokens": 0}'], "max_tokens: "),
        (NAME, ["--columns", "messages", "--file-root", "nowhere"], "--file-root: expected a folder"),
        (NAME, ["--columns", "prompt", "--file-root", "."], "--file-root: expected a folder"),
        (NAME, ["--files"], "MODEL: expected a model that reads files, got another; choose the rows with --columns pr"),
        (TEXTS, ["--columns", "prompt,image"], "MODEL: expected a model that reads images, got another; leave image"),
    ],
)
def test_wrong_commands_are_refused(
    server: RunningServer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    words: list[str],
    message: str,
) -> None:
    source = written(tmp_path / "in.jsonl", [{"prompt": "a", "messages": asked(), "image": "a.png"}])
    assert run(model, source, tmp_path / "out.jsonl", *words, "--url", server.url, status=2) == []
    assert message in capsys.readouterr().err


def test_model_of_texts_refuses_images(server: RunningServer, photos: Path, tmp_path: Path) -> None:
    source, bad = written(photos / "texts.jsonl", [{"messages": asked(image("star.jpg"))}]), tmp_path / "errors"
    words = ["--columns", "messages", "--errors", str(bad), "--url", server.url]
    assert run(TEXTS, source, tmp_path / "out.jsonl", *words, status=3) == []
    assert rows_of(bad)[0]["reason"].startswith(f"{IMAGE}expected only texts, as the model reads no images")
