"""The committed files of tiny-llama: complete, and with unchanged outputs."""

import re
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.embedded import copy_tiny_llama
from app.embedded.copy_tiny_llama import COMMITTED, FILES
from app.embedded.folder import PreparationError
from frameworks.generation.tools.formats import format_of_template
from tools.training import dialogues
from tools.training.prose import Entry
from tools.training.tool_dialogues import Dialogue, tool_of
from tools.training.tool_scores import measured, respond
from tools.training.tool_tasks import TASKS

TOKENIZER = Tokenizer.from_file(str(COMMITTED / "tokenizer.json"))
"""The tokenizer of the file, without transformers."""

PROMPT = "Return the"
CONTINUATION = " current process's group id.</s>"
"""Greedy continuation of float32 weights."""
MIN_MARGIN = 0.01
"""Minimum difference of the best two logits for `CONTINUATION`. Rounding of other CPUs is a thousandth of it."""
MAX_ANSWER_TOKENS = 120


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(COMMITTED)


@pytest.fixture(scope="module")
def model() -> Any:
    model, info = AutoModelForCausalLM.from_pretrained(COMMITTED, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values())
    return model.eval()


def test_committed_files_are_complete_and_small() -> None:
    assert {path.name for path in COMMITTED.iterdir()} == set(FILES)
    assert sum(path.stat().st_size for path in COMMITTED.iterdir()) <= 12_000_000
    with safe_open(COMMITTED / "model.safetensors", framework="pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118 - not a mapping
    assert {x.dtype for x in tensors} == {torch.float16}
    assert all(torch.isfinite(x).all() for x in tensors)
    assert sum(x.numel() for x in tensors) <= 5_000_000
    assert "licence" in (COMMITTED / "README.md").read_text(encoding="utf-8")


def test_config_matches_tokenizer_and_weights(model: Any, tokenizer: Any) -> None:
    config = model.config
    assert config.model_type == "llama"
    assert config.num_key_value_heads < config.num_attention_heads
    assert model.lm_head.weight is model.get_input_embeddings().weight
    assert config.vocab_size == len(tokenizer)
    assert config.max_position_embeddings == tokenizer.model_max_length
    assert tokenizer.convert_tokens_to_ids(list(dialogues.SPECIAL_TOKENS)) == list(range(len(dialogues.SPECIAL_TOKENS)))
    ends = tokenizer.convert_tokens_to_ids([dialogues.END_OF_TEXT, dialogues.END_OF_TURN])
    assert model.generation_config.eos_token_id == ends
    assert config.eos_token_id == tokenizer.eos_token_id == ends[0]
    assert config.bos_token_id == tokenizer.bos_token_id == tokenizer("")["input_ids"][0]
    assert config.pad_token_id == tokenizer.pad_token_id


@given(text=st.text(max_size=50))
def test_tokenizer_round_trips_any_text(text: str) -> None:
    ids = TOKENIZER.encode(text, add_special_tokens=False).ids
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_greedy_continuation_is_unchanged(model: Any, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    made = model.generate(ids, do_sample=False, max_new_tokens=48, return_dict_in_generate=True, output_logits=True)
    assert tokenizer.decode(made.sequences[0, ids.shape[1] :]) == CONTINUATION
    best, second = torch.cat(made.logits).topk(2).values.T
    assert (best - second).min() > MIN_MARGIN


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Hello!", "Hello! Ask me about Python, and I will say what its documentation says."),
        ("How do I open a file?", "I have no function for that."),
    ],
)
def test_chat_answers_are_unchanged(model: Any, tokenizer: Any, question: str, answer: str) -> None:
    assert _answer(model, tokenizer, question) == answer + dialogues.END_OF_TURN


@pytest.mark.parametrize("system", [None, *dialogues.SYSTEM])
@pytest.mark.parametrize(
    "question", ["Hello!", "How do I open a file?", "Why is the sky blue?", "Tell me about trains"]
)
def test_chat_answers_are_english_and_end(model: Any, tokenizer: Any, question: str, system: str | None) -> None:
    said = _answer(model, tokenizer, question, system)
    assert said.endswith(dialogues.END_OF_TURN)
    words = re.findall(r"[a-z]+", said.removesuffix(dialogues.END_OF_TURN).lower())
    known = set(re.findall(r"[a-z]+", " ".join(topics.values()).lower()))
    assert len(words) >= 4
    assert sum(word in known for word in words) >= 0.75 * len(words), "too few words of the language reference"


def test_template_formats_turns_and_refuses_roles(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Hi"}]
    written = "<s><|system|>Be brief.<|end|><|user|>Hi<|end|>"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == written
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        written + "<|assistant|>"
    )
    with pytest.raises(Exception, match="the roles are system, user, assistant and tool"):
        tokenizer.apply_chat_template([{"role": "critic", "content": ""}], tokenize=False)


def test_template_formats_tools_calls_and_results(tokenizer: Any) -> None:
    properties = {"city": {"type": "string"}, "unit": {"enum": ["celsius", 2]}, "more": True}
    functions: list[dict[str, Any]] = [
        {"name": "weather", "description": " Weather. ", "parameters": {"type": "object", "properties": properties}},
        {"name": "today"},
    ]
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12"},
        {"role": "assistant", "content": "Again.", "tool_calls": [call, call]},
    ]
    text = tokenizer.apply_chat_template(messages, tools=[{"function": each} for each in functions], tokenize=False)
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
    assert text == (
        "<s><|system|>You may call these functions:\n"
        '"weather": {"city": string, "unit": "celsius" or 2, "more": any}: Weather.\n"today": {}: <|end|>'
        f"<|assistant|>{written}<|end|><|user|><tool_response>\n12\n</tool_response><|end|>"
        f"<|assistant|>Again.\n{written}\n{written}<|end|>"
    )
    template = (COMMITTED / "chat_template.jinja").read_text(encoding="utf-8")
    assert template == dialogues.CHAT_TEMPLATE
    assert format_of_template(template, {"messages", "tools"}) == "hermes"


@pytest.mark.extended
def test_functions_are_called_where_they_are_needed(model: Any, tokenizer: Any) -> None:
    entry = Entry("list", "class", ("A list is a sequence of items.",))
    scores = measured(model, tokenizer, [entry], questions=33, seed=7)
    assert scores.calls >= 0.9
    assert scores.answers >= 0.8
    assert scores.unneeded <= 0.05
    assert scores.unwanted == 0


@pytest.mark.parametrize("has_tools", [False, True])
@pytest.mark.parametrize("question", ["Why is the sky blue?", "Tell me about trains", "What is a list?", "Hello!"])
def test_other_questions_call_no_function(model: Any, tokenizer: Any, question: str, has_tools: bool) -> None:
    tools = [tool_of(each) for each in TASKS[:2]] if has_tools else []
    (said,) = respond(model, tokenizer, [Dialogue([{"role": "user", "content": question}], tools)])
    assert "<tool_call>" not in said
    assert len(said.split()) >= 4


def test_prepare_copies_again_after_change(tmp_path: Path) -> None:
    assert copy_tiny_llama.prepare(tmp_path)
    assert not copy_tiny_llama.prepare(tmp_path)
    for name in FILES:
        assert (tmp_path / "tiny-llama" / name).read_bytes() == (COMMITTED / name).read_bytes()
    source = tmp_path / "source"
    source.mkdir()
    for name in FILES:
        (source / name).write_bytes(b"other")
    assert copy_tiny_llama.prepare(tmp_path, source)
    assert (tmp_path / "tiny-llama" / "config.json").read_bytes() == b"other"


def test_prepare_names_missing_committed_files(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match=r"expected model\.safetensors, config\.json, .*train_tiny_llama"):
        copy_tiny_llama.prepare(tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == []


def _answer(model: Any, tokenizer: Any, question: str, system: str | None = None) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")
    made = model.generate(**prompt, do_sample=False, max_new_tokens=MAX_ANSWER_TOKENS)
    said: str = tokenizer.decode(made[0, prompt["input_ids"].shape[1] :])
    return said
