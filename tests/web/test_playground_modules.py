"""The modules of the playground, one by one in the page: files of numpy, tokenizers, drawings, options."""

import io
import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.e2e.server import MODELS, RunningServer
from tests.support.models.text_files import TEXTS
from tests.web.browsers import SharedBrowser
from tests.web.playgrounds import run_module
from tests.web.tabs import Tab

# Blocks of Unicode, of which the first is drawn from most: Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai,
# marks and signs, Japanese, Chinese, Korean, compatibility forms, emoji, and controls.
BLOCKS = (
    (0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x5F0), (0x620, 0x6F0), (0x900, 0x970), (0xE00, 0xE5C),
    (0x2000, 0x2BFF), (0x3040, 0x30FF), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0x300, 0x370), (0xFE30, 0xFF60),
    (0x1F300, 0x1F5FF), (0x0, 0x20),
)  # fmt: skip
WRITTEN = (
    "", "   ", "Hello, world!", "[CLS] a [SEP] [MASK]b[PAD]", "[cls]", "\u039f\u0394\u039f\u03a3 \u03a3",
    "İstanbul ǅ", "naïve café", "你好world世界", "zero\u200bwidth soft\u00adhyphen", "x" * 101 + " y",
    "👩\u200d👩\u200d👧 emoji", "\ufb01 \ufb02 \u2167 ß ẞ", "हिन्दी भाषा", "ภาษาไทย", "한국어 테스트",
    "nul\u0000 and \ufffd", "line\u2028break\u0085next", "unaffable, unwantedly running", "a.b,c;d'e\"f",
    "$1.50 + 3% = ?",
)  # fmt: skip


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Return texts written by hand, and 300 random ones of many scripts."""
    draw = random.Random(7)
    written = [*WRITTEN, *TEXTS]
    for _ in range(300):
        blocks = [BLOCKS[0] if draw.random() < 0.6 else draw.choice(BLOCKS) for _ in range(draw.randint(1, 40))]
        written.append("".join(chr(draw.randrange(*block)) + " " * (draw.random() < 0.15) for block in blocks))
    return written


@pytest.fixture(scope="module")
def tab(browser: SharedBrowser, playground: RunningServer) -> Iterator[Tab]:
    """Load the page once: modules keep nothing."""
    tab = browser.open_tab(f"{playground.url}/#/playground")
    yield tab
    browser.close_tab(tab)


def test_wordpiece_gives_ids_of_tokenizers(tab: Tab, texts: list[str]) -> None:
    file = MODELS / "minilm-onnx" / "tokenizer.json"
    reference = Tokenizer.from_file(str(file))
    reference.no_truncation()
    reference.no_padding()
    body = """({ WordPiece }, [file, texts, most]) => {
        const tokenizer = new WordPiece(file);
        return texts.map((text) => [tokenizer.encode(text), tokenizer.encode(text, most)]);
    }"""
    value = [json.loads(file.read_text(encoding="utf-8")), texts, 9]
    found = run_module(tab.page, "browser/wordpiece.js", body, value)
    expected = [encoding.ids for encoding in reference.encode_batch(texts)]
    assert [whole for whole, _ in found] == expected
    reference.enable_truncation(9)
    assert [short for _, short in found] == [encoding.ids for encoding in reference.encode_batch(texts)]
    assert max(map(len, expected)) > 30


def test_wordpiece_refuses_other_tokenizers(tab: Tab) -> None:
    file = json.loads((MODELS / "tiny-llama" / "tokenizer.json").read_text(encoding="utf-8"))
    body = "({ WordPiece }, file) => { try { new WordPiece(file); } catch (error) { return error.message; } }"
    message = run_module(tab.page, "browser/wordpiece.js", body, file)
    assert message.startswith("tokenizer.json: model: expected WordPiece, got BPE")


ARRAYS: list[np.ndarray[Any, Any]] = [
    np.arange(-3, 3, dtype=dtype).reshape(2, 3)
    for dtype in ("int8", "int16", "int32", "int64", "float16", "float32", "float64", ">i4", ">f8", "<f2")
]
ARRAYS += [np.arange(6, dtype=dtype) for dtype in ("uint8", "uint16", "uint32", "uint64")]
ARRAYS += [
    np.array([True, False]), np.array(1.5), np.zeros((2, 0)), np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    np.array([65504, 6e-8, -0.0, 1 / 3], dtype="float16"),
]  # fmt: skip


def test_npy_files_are_read_as_numpy_does(tab: Tab) -> None:
    body = """({ readNpy }, files) => files.map((bytes) => {
        const { dtype, shape, data } = readNpy(Uint8Array.from(bytes));
        return [dtype, shape, data.map(Number)];
    })"""
    found = run_module(tab.page, "playground/npy.js", body, [list(npy_bytes(array)) for array in ARRAYS])
    for (dtype, shape, data), array in zip(found, ARRAYS, strict=True):
        assert (dtype, tuple(shape)) == (array.dtype.newbyteorder("=").name, array.shape)
        assert data == array.ravel().tolist()


def test_npy_files_that_cannot_be_read_are_refused(tab: Tab) -> None:
    body = """({ readNpy }, files) => files.map((bytes) => {
        try { return readNpy(Uint8Array.from(bytes)); } catch (error) { return error.message; }
    })"""
    whole = npy_bytes(np.zeros(4))
    files = [b"PK\x03\x04", whole[:-8], npy_bytes(np.array(["a"])), npy_bytes(np.zeros(2, dtype="complex64"))]
    other, cut, text, complex_numbers = run_module(tab.page, "playground/npy.js", body, [list(file) for file in files])
    assert "expected a .npy file" in other
    assert "expected 4 values of float64, got 24 bytes" in cut
    assert "got '<U1'" in text
    assert "got '<c8'" in complex_numbers


def test_examples_of_digits_are_read_by_model(tab: Tab, playground: RunningServer) -> None:
    body = "async ({ DIGIT_STROKES }, base) => DIGIT_STROKES"
    strokes = run_module(tab.page, "playground/digit-strokes.js", body)
    body = "({ rasterise }, digits) => digits.map(rasterise)"
    images = run_module(tab.page, "playground/raster.js", body, [*strokes, moved(strokes[3]), [], [[{"x": 5, "y": 5}]]])
    *digits, far, empty, dot = images
    answer = playground.infer("digits", inputs={"image": digits})
    assert answer["outputs"]["output_label"]["data"] == list(range(10))
    assert all(0 <= grey <= 16 for image in images for grey in image)
    # Place and size of a drawing do not matter.
    assert far == digits[3]
    assert empty == [0] * 64
    assert 0 < sum(dot) < sum(digits[1])


def moved(strokes: list[list[dict[str, float]]]) -> list[list[dict[str, float]]]:
    return [[{"x": 500 + 4 * point["x"], "y": 4 * point["y"] - 30} for point in stroke] for stroke in strokes]


def test_latest_only_runs_newest_alone(tab: Tab) -> None:
    body = """async ({ latestOnly }) => {
        const runs = [];
        let running = 0, most = 0, open = [];
        const push = latestOnly(async (value) => {
            runs.push(value);
            most = Math.max(most, ++running);
            await new Promise((resolve) => open.push(resolve));
            running -= 1;
        });
        const turn = () => new Promise((resolve) => setTimeout(resolve));
        for (const value of [1, 2, 3]) push(value);
        await turn(); open.shift()(); await turn();
        push(4); push(5);
        open.shift()(); await turn(); open.shift()(); await turn();
        push(6); await turn(); open.shift()();
        return [runs, most];
    }"""
    assert run_module(tab.page, "playground/latest.js", body) == [[1, 3, 5, 6], 1]


NO_EFFECT = "Accepted without effect."
OTHER_NAMES = {"max_completion_tokens", "structured_outputs"}
"""Names of options that the forms have under another name."""
OF_FORMS = {"model", "messages", "prompt", "stream_options"}
"""Fields that the tools fill in by themselves."""


@pytest.mark.parametrize(
    ("schema", "groups"), [("ChatRequest", "CHAT_OPTIONS"), ("CompletionsRequest", "COMPLETION_OPTIONS")]
)
def test_forms_have_all_options_of_routes(tab: Tab, playground: RunningServer, schema: str, groups: str) -> None:
    described: dict[str, Any] = playground.client.get("/openapi.json").json()["components"]["schemas"][schema]
    fields = {name for name, field in described["properties"].items() if field.get("description") != NO_EFFECT}
    body = "(module, groups) => module[groups].flatMap(([, rows]) => rows.map((row) => row.name))"
    names = run_module(tab.page, "playground/generation-options.js", body, groups)
    assert len(names) == len(set(names))
    assert set(names) == fields - OTHER_NAMES - OF_FORMS


def test_options_are_read_by_kind_and_faults_named(tab: Tab) -> None:
    body = """({ CHAT_OPTIONS, initialValues, readOptions, changedValues }, changes) => {
        const values = { ...initialValues(CHAT_OPTIONS), ...changes };
        return [readOptions(CHAT_OPTIONS, values), changedValues(CHAT_OPTIONS, values)];
    }"""
    changes = {
        "temperature": "0.5", "stop": "a\n\n b ", "stop_token_ids": "1, 2 3", "logit_bias": '{"4": -1}',
        "ignore_eos": True, "parallel_tool_calls": "false", "reasoning_effort": "low", "max_tokens": "",
        "seed": "x", "top_k": "1.5", "tools": "[",
    }  # fmt: skip
    read, changed = run_module(tab.page, "playground/generation-options.js", body, changes)
    assert read["members"] == {
        "temperature": 0.5, "stop": ["a", "b"], "stop_token_ids": [1, 2, 3], "logit_bias": {"4": -1},
        "ignore_eos": True, "parallel_tool_calls": False, "reasoning_effort": "low", "stream": True,
        "logprobs": True, "top_logprobs": 5,
    }  # fmt: skip
    assert read["faults"].keys() == {"seed", "top_k", "tools"}
    assert changed == changes


@pytest.mark.parametrize(("context", "expected"), [(None, "512"), (8192, "512"), (512, "256"), (1, "1")])
def test_default_length_leaves_half_of_context(tab: Tab, context: int | None, expected: str) -> None:
    body = """({ CHAT_OPTIONS, COMPLETION_OPTIONS, initialValues, optionsOf, limitOf }, context) =>
        [CHAT_OPTIONS, COMPLETION_OPTIONS].map((groups) => {
            const options = optionsOf(groups, context);
            const values = initialValues(options);
            const own = { ...values, max_tokens: "5" };
            return [values.max_tokens, limitOf(options, values, context), limitOf(options, own, context)];
        })"""
    found = run_module(tab.page, "playground/generation-options.js", body, context)
    assert found == [[expected, {"contextTokens": context}, {}]] * 2


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    ("elapsed_ms", "starts"),
    [(20, [1, 4]), (8, [1, 2])],
    ids=["one after another", "side by side"],
)
def test_steps_of_pipeline_end_within_request(tab: Tab, elapsed_ms: int, starts: list[int]) -> None:
    phases = [("decode", 1), ("queue", 2), ("compute", 6), ("encode", 1), ("step-a", 3), ("step-b", 6)]
    timings = [{"name": name, "durationMs": duration} for name, duration in phases]
    body = "({ phasesOf }, [timings, elapsedMs]) => phasesOf(timings, elapsedMs)"
    found = run_module(tab.page, "playground/timing.js", body, [timings, elapsed_ms])
    assert [each.get("label", each["name"]) for each in found] == ["decode", "Step a", "Step b", "encode"]
    assert [each["startMs"] for each in found[1:3]] == starts
    plain = run_module(tab.page, "playground/timing.js", body, [timings[:4], elapsed_ms])
    assert plain == timings[:4]
