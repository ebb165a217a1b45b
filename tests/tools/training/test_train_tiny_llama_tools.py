"""The second stage of tiny-llama: its dialogues, its rows, and a tiny training."""

import dataclasses
import json
import math
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from app.embedded.copy_tiny_llama import COMMITTED, FILES
from tools.training import dialogues
from tools.training.prose import Document, Entry
from tools.training.tool_dialogues import Dialogue, ask, offered, tool_of, with_tools
from tools.training.tool_rows import IGNORED, encoded, mixed_batches
from tools.training.tool_scores import Scores, measured
from tools.training.tool_tasks import TASKS, Task
from tools.training.train_tiny_llama import Recipe, loss_of
from tools.training.train_tiny_llama import make as make_first
from tools.training.train_tiny_llama_tools import ToolRecipe, make

pytestmark = pytest.mark.extended

ENTRY = Entry("list", "class", ("A list is a sequence of items.",))
CHANCES = st.integers(0, 2**32).map(random.Random)
FIRST = Recipe(
    vocabulary=512, context=512, hidden_size=16, feed_forward_size=32, layers=1, heads=2, key_value_heads=1, steps=1,
    rows_per_step=1, max_loss=math.inf,
)  # fmt: skip
SECOND = ToolRecipe(
    passes=(1, 1),
    rows_per_step=1,
    tool_rows_per_step=1,
    questions=11,
    min_calls=0,
    min_answers=0,
    max_unneeded=1,
    max_unwanted=1,
    max_loss=math.inf,
)


@pytest.fixture(scope="module")
def texts() -> list[Document]:
    paragraph = "The list of strings that is returned by the call is sorted by the length of each of its items."
    return [Document(f"source {n}", (Entry(f"thing{n}", "topic", (f"{paragraph} {n}.",) * 8),)) for n in range(60)]


@pytest.fixture(scope="module")
def source(texts: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first")
    make_first(folder, FIRST, texts)
    return folder


@given(chance=CHANCES)
def test_calls_fit_functions_that_are_offered(chance: random.Random) -> None:
    talk = with_tools([ENTRY], chance)
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in talk.tools}
    assert len(schemas) == len(talk.tools)
    for message, following in zip(talk.messages, [*talk.messages[1:], None], strict=True):
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            schema = schemas[call["function"]["name"]]
            assert list(arguments) == schema["required"]
            kinds = {name: type(value) for name, value in arguments.items()}
            assert kinds == {n: {"integer": int, "string": str}[e["type"]] for n, e in schema["properties"].items()}
            assert following is None or following["role"] == "tool"
    assert talk.messages[-1]["role"] == "assistant"


def test_dialogues_are_of_every_sort() -> None:
    chance = random.Random(0)
    talks = [with_tools([ENTRY], chance) for _ in range(400)]
    calls = [talk for talk in talks if any("tool_calls" in message for message in talk.messages)]
    plain = [talk for talk in talks if not any("tool_calls" in message for message in talk.messages)]
    assert all(talk.tools for talk in calls)
    assert 0.5 < len(calls) / len(talks) < 0.7
    assert min(sum(bool(talk.tools) for talk in plain), sum(not talk.tools for talk in plain)) > 40
    called = {call["function"]["name"] for talk in calls for m in talk.messages for call in m.get("tool_calls", [])}
    assert called == {task.name for task in TASKS}


@given(chance=CHANCES, held_out=st.booleans(), task=st.sampled_from(TASKS))
def test_question_states_every_argument(chance: random.Random, held_out: bool, task: Task) -> None:
    offers = offered(task, chance)
    assert offers[0] is task
    assert len({offer.name for offer in offers}) == len(offers)
    asked = ask(task, chance, held_out)
    assert all(str(value) in asked.question for value in asked.arguments.values())
    result = json.loads(asked.result)[task.result_name] if asked.result.startswith("{") else asked.result
    assert result == "ok" or str(result) in asked.answer


def test_held_out_questions_are_not_learnt() -> None:
    chance = random.Random(0)
    tasks = [task for task in TASKS if task.parameters]
    learnt, held_out = ({ask(task, chance, each).question for task in tasks * 60} for each in (False, True))
    assert len(learnt) > 200
    assert len(held_out) > 20
    assert not learnt & held_out


def test_only_words_of_assistant_are_learnt() -> None:
    tokenizer = AutoTokenizer.from_pretrained(COMMITTED)
    tokenizer.chat_template = dialogues.CHAT_TEMPLATE
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    talk = Dialogue(
        [
            {"role": "user", "content": "How warm is it in Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "It is 7 degrees."},
        ],
        [tool_of(TASKS[0])],
    )
    ids, labels = encoded(talk, tokenizer)
    assert all(label in (IGNORED, token) for token, label in zip(ids, labels, strict=True))
    learnt = [token for token, label in zip(ids, labels, strict=True) if label != IGNORED]
    arguments = json.dumps({"name": "weather", "arguments": {"city": "Oslo"}})
    end = dialogues.END_OF_TURN
    assert tokenizer.decode(learnt) == f"<tool_call>\n{arguments}\n</tool_call>{end}It is 7 degrees.{end}"


def test_rows_hold_whole_dialogues(texts: list[Document], source: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(source)
    first, again, other = (next(mixed_batches(texts, tokenizer, 512, 2, 3, seed)) for seed in (0, 0, 1))
    assert [each.shape for each in first] == [(5, 512)] * 3
    assert all(torch.equal(one, same) for one, same in zip(first, again, strict=True))
    assert not torch.equal(first.ids, other.ids)
    assert torch.equal(first.ids[:2], first.labels[:2])
    begin = tokenizer.bos_token_id
    assert (first.positions[2:][first.ids[2:] == begin] == 0).all()
    learnt = first.labels[2:] != IGNORED
    assert torch.equal(first.labels[2:][learnt], first.ids[2:][learnt])
    assert 0 < learnt.float().mean() < 0.8


def test_dialogues_of_a_row_are_separate(texts: list[Document], source: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(source), AutoModelForCausalLM.from_pretrained(source).float()
    batch = next(mixed_batches(texts, tokenizer, 512, 1, 1, 0))
    second = int((batch.positions[1] == 0).nonzero()[1])
    labels = batch.labels.clone()
    labels[:, :second] = IGNORED
    labels[0] = IGNORED
    other = batch.ids.clone()
    other[1, :second] = other[1, :second].flip(0)
    losses = [loss_of(model, batch._replace(ids=ids, labels=labels)) for ids in (batch.ids, other)]
    torch.testing.assert_close(*losses)
    changed = batch.ids.clone()
    changed[1, second:] = changed[1, second:].flip(0)
    changed_loss = loss_of(model, batch._replace(ids=changed, labels=labels))
    assert (changed_loss - losses[0]).abs() > 1e-3


def test_make_writes_all_files_twice_alike(
    texts: list[Document], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        make(tmp_path / name, source, SECOND, texts)
    assert "Scores(calls=" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "one").iterdir()} == set(FILES)
    for file in set(FILES) - {"README.md"}:  # contains the training time
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert "Second stage" in (tmp_path / "one" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("limit", [{"max_loss": 0.5}, {"min_calls": 0.5}, {"min_answers": 0.5}])
def test_make_refuses_bad_model(texts: list[Document], source: Path, tmp_path: Path, limit: dict[str, float]) -> None:
    recipe = dataclasses.replace(SECOND, passes=(1,), **limit)  # type: ignore[arg-type]
    with pytest.raises(SystemExit, match="nothing written"):
        make(tmp_path / "out", source, recipe, texts)
    assert not (tmp_path / "out").exists()


def test_scores_compare_whole_calls_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = AutoTokenizer.from_pretrained(COMMITTED)
    tokenizer.chat_template = dialogues.CHAT_TEMPLATE
    monkeypatch.setattr("tools.training.tool_scores.respond", lambda *_: ["<tool_call>"] * (5 * 11))
    assert measured(None, tokenizer, [ENTRY], 11, 0) == Scores(0.0, 0.0, 1.0, 1.0)
