"""Rows of conversations: their forms in each file, the files of their images, and rows that cannot be sent."""

import asyncio
import io
import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from extensions.offline import conversation_images
from extensions.offline.columns import json_field, to_column
from extensions.offline.contract import Generated, RowAnswer, RunModelDescription, WrongCommand
from extensions.offline.conversations import ConversationRows
from extensions.offline.input.files import find_files
from extensions.offline.job import RunJob, RunResult, open_reader, run_job
from extensions.offline.requests import RowSource

SEEING = RunModelDescription("fake", "generate", {}, {}, {}, max_images=3)
FILES = {"a.png": b"first", "deep/b.png": b"second"}
URL = "data:image/png;base64,AA=="
PROMPTED = {"prompt": "prompt", "image": "photo"}
BYTES_AND_PATH = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class FakeModel:
    """A RunModel. The text that it generates is the conversation with its options."""

    concurrency = 2
    rows_per_request = 4
    description = SEEING

    async def answer(self, body: bytes) -> RowAnswer:
        return Generated(body.decode(), "stop", 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with FILES, and links out of it and within it."""
    folder = tmp_path / "photos"
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "in.png").symlink_to(folder / "a.png")
    return folder


def encoded(content: bytes) -> str:
    return b64encode(content).decode()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


def prepared(folder: Path, inputs: dict[str, str], description: RunModelDescription = SEEING, **columns: Any) -> Any:
    """Return the rows of a table with these columns; those of lists are of JSON Lines."""
    arrays, fields = [], []
    for name, values in columns.items():
        is_array = isinstance(values, pa.Array)
        field = pa.field(name, values.type) if is_array else json_field(name)
        fields.append(field)
        arrays.append(values if is_array else to_column(field, values))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    return ConversationRows(table, inputs, folder, description, {"max_tokens": 5})


def sent(rows: ConversationRows) -> list[Any]:
    return [json.loads(request.body)["messages"] for request in rows.requests(8)]


def reason(folder: Path, messages: Any, description: RunModelDescription = SEEING) -> str:
    """Return why the only row is bad."""
    rows = prepared(folder, {"messages": "chat"}, description, chat=[messages])
    assert sent(rows) == []
    ((position, found),) = rows.bad
    assert position == 0
    return str(found)


def test_message_paths_become_base64(folder: Path) -> None:
    first = {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}}
    parts = [first, image(URL), image("https://example.org/c.png")]
    rows = prepared(folder, {"messages": "chat"}, chat=[[{"role": "system", "content": "be brief"}, *user(*parts)]])
    first_sent = {"type": "image_url", "image_url": {"url": encoded(b"first"), "detail": "low"}}
    assert sent(rows) == [[{"role": "system", "content": "be brief"}, *user(first_sent, *parts[1:])]]
    assert json.loads(rows.body([0]))["max_tokens"] == 5


@pytest.mark.parametrize("member", ["image", "path", "url"])
def test_parts_of_transformers_are_read(folder: Path, member: str) -> None:
    path = str(folder / "deep" / "b.png")
    rows = prepared(folder, {"messages": "chat"}, chat=[user({"type": "image", member: path})])
    assert sent(rows) == [user(image(encoded(b"second")))]


@pytest.mark.parametrize(
    "part", [{"type": "video", "video": "a.png"}, {"type": "video_url", "video_url": {"url": "a.png"}}]
)
def test_paths_of_videos_are_read(folder: Path, part: dict[str, Any]) -> None:
    rows = prepared(folder, {"messages": "chat"}, chat=[user(part)])
    assert sent(rows) == [user({"type": "video_url", "video_url": {"url": encoded(b"first")}})]


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_each_format_holds_messages(folder: Path, form: str) -> None:
    chats = [user(image("a.png"), {"type": "text", "text": "what?"}), user({"type": "text", "text": "no image"})]
    source = folder / f"in.{form}"
    if form == "jsonl":
        source.write_text("".join(json.dumps({"chat": chat}) + "\n" for chat in chats))
    elif form == "csv":
        source.write_text("chat\n" + "".join('"' + json.dumps(chat).replace('"', '""') + '"\n' for chat in chats))
    else:
        pq.write_table(pa.table({"chat": chats}), source)
    row_source = RowSource("", {"messages": "chat"}, "messages", {}, folders=(folder,))
    reader = open_reader(source, form)
    row_source.check(reader.schema)
    (window,) = reader.windows(10, 0)
    rows = row_source.prepare(window.table, SEEING)
    bodies = [json.loads(request.body) for request in rows.requests(8)]
    assert bodies == [{"messages": user(image(encoded(b"first")), chats[0][0]["content"][1])}, {"messages": chats[1]}]


def test_developer_message_becomes_system_message(folder: Path) -> None:
    messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "why?", "name": None}]
    rows = prepared(folder, {"messages": "chat"}, chat=[messages])
    assert sent(rows) == [[{"role": "system", "content": "be brief"}, {"role": "user", "content": "why?"}]]


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (pa.array(["a.png"]), [b"first"]),
        (pa.array(['["deep/b.png", "in.png"]']), [b"second", b"first"]),
        (pa.array([["a.png", "deep/b.png"]]), [b"first", b"second"]),
        (pa.array([b"file"]), [b"file"]),
        (pa.array([[b"one", b"two"]]), [b"one", b"two"]),
        (pa.array([{"bytes": b"file", "path": "gone.png"}], BYTES_AND_PATH), [b"file"]),
        (pa.array([[{"bytes": None, "path": "a.png"}]], pa.list_(BYTES_AND_PATH)), [b"first"]),
        (pa.array([None], pa.string()), []),
        (pa.array([[]], pa.list_(pa.string())), []),
        ([["a.png"]], [b"first"]),
    ],
)
def test_images_go_before_prompt(folder: Path, images: Any, expected: list[bytes]) -> None:
    rows = prepared(folder, PROMPTED, prompt=pa.array(["what?"]), photo=images)
    (message,) = sent(rows)[0]
    *parts, text = message["content"]
    assert (message["role"], text) == ("user", {"type": "text", "text": "what?"})
    assert [b64decode(part["image_url"]["url"]) for part in parts] == expected


def test_bad_prompts_and_images_have_reasons(folder: Path) -> None:
    columns = {"prompt": pa.array(["a", None, "c", "d"]), "photo": [["a.png", "gone.png"], "a.png", [5], "a.png"]}
    rows = prepared(folder, PROMPTED, **columns)
    assert [request.positions for request in rows.requests(8)] == [[3]]
    source = RowSource("", PROMPTED, "messages", {}, folders=(folder,))
    assert [(at, source.explain(pa.table({}), at, reason)) for at, reason in rows.bad] == [
        (0, "image[1]: expected a file, got a path without one"),
        (1, "prompt: expected a text, got null"),
        (2, "image[0]: expected a path, a data URL or bytes, got a number"),
    ]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("../secret.png", "expected a path below the folder of the files, got another"),
        ("out.png", "expected a path below the folder of the files, got another"),
        ("/etc/hostname", "expected a path below the folder of the files, got another"),
        ("gone.png", "expected a file, got a path without one"),
        ("deep", "expected a file, got a path without one"),
        ("", "expected a file, got a path without one"),
        ("file:///photos/a.png", "expected a path, a data URL or one of http(s), got file; write the path alone"),
        ({"path": None}, "expected a path, a data URL or bytes, got null"),
    ],
)
def test_unusable_path_is_bad_row(folder: Path, url: Any, expected: str) -> None:
    assert reason(folder, user({"type": "text", "text": "a"}, image(url))) == (
        f"messages[0].content[1].image_url.url: {expected}"
    )


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (None, "messages: expected a list of messages, got null; correct the row"),
        ({"role": "user"}, "messages: expected a list of messages, got an object; correct the row"),
        ("[{", "messages: expected a list of messages as JSON, got other text ("),
        ('"hello"', "messages: expected a list of messages, got a string; correct the row"),
        (user({"type": "image"}), "messages[0].content[0]: expected one of image, path, url beside type, got none; ke"),
        (user({"type": "image", "path": "a", "url": "b"}), "messages[0].content[0]: expected one of image, path, url"),
        (user({"type": "video", "image": "a.mp4"}), "messages[0].content[0]: expected one of video, path, url beside"),
        (user({"type": "image", "file": "a.png"}), "messages[0].content[0]: expected one of image, path, url beside"),
        (user(*[image("a.png")] * 4), "messages: expected at most 3 images, got 4; send fewer, or raise max_images"),
    ],
)
def test_malformed_messages_are_bad_rows(folder: Path, messages: Any, expected: str) -> None:
    assert reason(folder, messages).startswith(expected)


def test_model_of_texts_refuses_images(folder: Path) -> None:
    blind = RunModelDescription("fake", "generate", {}, {}, {})
    assert reason(folder, user(image("gone.png")), blind).startswith(
        "messages[0].content[0].image_url.url: expected only texts, as the model reads no images"
    )
    assert len(sent(prepared(folder, {"messages": "chat"}, blind, chat=[user()]))) == 1


def test_other_values_than_json_are_refused(folder: Path) -> None:
    chat = pa.array([[{"role": "user", "content": b"bytes"}]])
    rows = prepared(folder, {"messages": "chat"}, chat=chat)
    assert sent(rows) == []
    assert rows.bad[0][1].startswith("messages: expected values of JSON, got others")


def test_files_of_row_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_images, "MAX_FILE_BYTES", 10)
    assert reason(folder, user(image("a.png"), image("deep/b.png"))) == (
        "messages: expected files of at most 10 bytes together, got more; send smaller ones"
    )


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ({"messages": "x"}, pa.int64(), 'expected lists of messages, or JSON of them for messages, got "x" of int64'),
        ({"prompt": "x", "image": "x"}, pa.int64(), 'expected texts for prompt, got "x" of int64'),
        ({"image": "x"}, pa.list_(pa.int64()), 'expected paths or bytes for image, got "x" of list'),
        ({"messages": "y"}, pa.string(), 'column: expected one of x, got "y"'),
    ],
)
def test_columns_of_other_type_refused(inputs: dict[str, str], kind: pa.DataType, message: str) -> None:
    with pytest.raises(WrongCommand, match=message):
        RowSource("", inputs, "messages", {}).check(pa.schema([pa.field("x", kind)]))


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.binary()), BYTES_AND_PATH])
def test_output_lacks_files_of_images(kind: pa.DataType) -> None:
    table = pa.schema([pa.field("prompt", pa.string()), pa.field("photo", kind)]).empty_table()
    source = RowSource("", PROMPTED, "messages", {})
    assert source.kept(table).column_names == ["prompt"]
    paths = table.set_column(1, "photo", pa.array([], pa.list_(pa.string())))
    assert source.kept(paths).column_names == ["prompt", "photo"]


def test_lists_of_messages_are_no_prompts() -> None:
    hint = "say --columns messages=COLUMN for conversations"
    source = RowSource("chat", {}, "prompt", {})
    with pytest.raises(WrongCommand, match=hint):
        source.check(pa.schema([pa.field("chat", pa.list_(pa.string()))]))
    field = json_field("chat")
    table = pa.Table.from_arrays([to_column(field, [user()])], schema=pa.schema([field]))
    assert source.prepare(table, SEEING).bad == [(0, f"text: expected a text, got list; {hint}")]


def run(tmp_path: Path, pattern: str, root: Path | None = None) -> RunResult:
    files = find_files(pattern, tmp_path / "out")
    folders = tuple(file.path.parent for file in files)
    source = RowSource("", {"messages": "chat"}, "messages", {}, root, folders)
    job = RunJob(files, tmp_path / "out.parts", source, tmp_path / "errors")
    return asyncio.run(run_job(job, FakeModel(), io.StringIO()))


def test_paths_begin_at_their_input_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(name.encode())
        (tmp_path / name / f"{name}.jsonl").write_text(json.dumps({"chat": user(image("a.png"))}))
    assert run(tmp_path, str(tmp_path / "*" / "*.jsonl")) == RunResult(2, 0)
    for name in ("one", "two"):
        row = json.loads((tmp_path / "out" / f"{name}.jsonl").read_text())
        assert row["chat"] == user(image("a.png"))
        assert json.loads(row["generated"])["messages"] == user(image(encoded(name.encode())))


def test_other_root_is_no_resumption(tmp_path: Path, folder: Path) -> None:
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"chat": user(image(each))}) + "\n" for each in ("a.png", "gone.png")))
    (tmp_path / "out").mkdir()
    assert run(tmp_path, str(source)) == RunResult(2, 1)
    (error,) = [json.loads(line) for line in (tmp_path / "errors").read_text().splitlines()]
    assert (error["row"], "got a path without one" in error["reason"]) == (2, True)
    with pytest.raises(WrongCommand, match="--restart"):
        run(tmp_path, str(source), folder / "deep")
