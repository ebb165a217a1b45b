"""EleutherAI's evaluation harness: its scores through the server are those of its own model, on the same tasks."""

import json
import os
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

URL = os.environ["ROUNDHOUSE_URL"]
MODEL = os.environ["ROUNDHOUSE_MODEL"]
CONTEXT_TOKENS = 512
BATCH_SIZE = 4
# Scores are sums of numbers that two programs add in their own order.
TOLERANCE = 1e-5

STORIES = [
    "Once upon a time there was a small engine who lived in a shed near the river.",
    "The list has three numbers, and each of them is larger than the one before it.",
    "A function returns a value. If it returns nothing, the value is None.",
    "The king asked for bread, but the baker had only flour and water that day.",
    "def add(first, second):\n    return first + second\n\nprint(add(1, 2))",
    "Été à Paris: 20 °C, naïve façade, 日本語.",
]
ENDS = [" the house.", " a list of numbers.", " return None", " water and flour."]
TASKS = {
    "choices": """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: ends
doc_to_target: end
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "perplexity": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "texts": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{ends[end]}}"
generation_kwargs: {until: ["\\n\\n", "."], max_gen_toks: 16, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
"""The tasks, as their YAML files describe them."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"text": story, "ends": ENDS, "end": i % len(ENDS)} for i, story in enumerate(STORIES)]
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = f'dataset_path: json\ndataset_kwargs: {{data_files: {{test: "{data}"}}}}\ntest_split: test\n'
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{head}{task}")
    return TaskManager(include_path=str(folder), include_defaults=False)


def evaluate(tasks: TaskManager, kind: str, names: list[str], chat: bool = False, **arguments: Any) -> Any:
    return lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=names,
        task_manager=tasks,
        batch_size=1 if chat else BATCH_SIZE,
        apply_chat_template=chat,
        bootstrap_iters=0,
    )


def own(tasks: TaskManager, names: list[str], chat: bool = False) -> Any:
    """Evaluate by the harness's own model."""
    return evaluate(tasks, "hf", names, chat, pretrained=MODEL, dtype="float32", device="cpu", add_bos_token=not chat)


def served(tasks: TaskManager, names: list[str], **arguments: Any) -> Any:
    """Evaluate by /v1/completions, with the tokenizer of the model's folder."""
    return evaluate(
        tasks,
        "local-completions",
        names,
        model="tiny-llama",
        base_url=f"{URL}/v1/completions",
        tokenizer_backend="huggingface",
        tokenizer=MODEL,
        max_length=CONTEXT_TOKENS,
        add_bos_token=True,
        **arguments,
    )


def answers_of(results: Any, task: str) -> list[Any]:
    """Return what the model answered to each request of a task, in order."""
    samples = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
    return [answer for sample in samples for answer in sample["filtered_resps"]]


def check_metrics(first: Any, second: Any, task: str) -> None:
    """Compare the metrics of a task as the harness prints them, with four decimals."""
    pairs = {name: value for name, value in first["results"][task].items() if isinstance(value, float)}
    assert pairs
    for name, value in pairs.items():
        other = second["results"][task][name]
        # A perplexity is an exponential: only its leading digits are those of both sums.
        assert other == pytest.approx(value, rel=TOLERANCE), name
        if value < 1000:
            assert f"{other:.4f}" == f"{value:.4f}", name


@pytest.fixture(scope="module")
def reference(tasks: TaskManager) -> Any:
    return own(tasks, list(TASKS))


@pytest.mark.parametrize("num_concurrent", [1, 3])
def test_completions_score_as_own_model(tasks: TaskManager, reference: Any, num_concurrent: int) -> None:
    results = served(tasks, list(TASKS), num_concurrent=num_concurrent, tokenized_requests=True)
    for task in TASKS:
        check_metrics(reference, results, task)
    expected, found = answers_of(reference, "choices"), answers_of(results, "choices")
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in expected]
    assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], rel=TOLERANCE)
    assert answers_of(results, "perplexity") == pytest.approx(answers_of(reference, "perplexity"), rel=TOLERANCE)
    assert answers_of(results, "texts") == answers_of(reference, "texts")
    # Some of the texts end at once.
    assert any(answers_of(results, "texts"))


def test_texts_may_be_sent_as_text(tasks: TaskManager, reference: Any) -> None:
    results = served(tasks, ["texts"], tokenized_requests=False)
    assert answers_of(results, "texts") == answers_of(reference, "texts")


def test_chats_answer_as_own_model(tasks: TaskManager) -> None:
    results = evaluate(
        tasks,
        "local-chat-completions",
        ["texts"],
        chat=True,
        model="tiny-llama",
        base_url=f"{URL}/v1/chat/completions",
    )
    assert answers_of(results, "texts") == answers_of(own(tasks, ["texts"], chat=True), "texts")
    assert all(answers_of(results, "texts"))
