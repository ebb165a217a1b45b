"""Which fields a route of the OpenAI API honours, which it takes as long as they ask for nothing that is not done, and
which it refuses, with what to do instead. A field that is in none of these tables is unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.protocols.json_body import describe_value
from frameworks.errors import InvalidInput

COMMON_FIELDS = frozenset({"model", "priority", "timeout_ms"})
"""What every route honours."""

LABELS = frozenset({"user", "safety_identifier", "prompt_cache_key", "metadata"})
"""They say who asks, or what the request is called; nothing depends on them."""


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """The fields of one route. `remedies`: those that it refuses, unless they have one of their `neutral` values."""

    honoured: frozenset[str]
    labels: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    remedies: Mapping[str, str] = field(default_factory=dict)
    known: frozenset[str] = field(init=False)
    """Every field that is in a table."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", COMMON_FIELDS | self.honoured | self.labels | self.remedies.keys())

    def check(self, fields: Mapping[str, Any]) -> None:
        """Raises InvalidInput for a field that asks for what is not served."""
        for name, remedy in self.remedies.items():
            if name in fields and not _is_one_of(fields[name], self.neutral.get(name, ())):
                raise InvalidInput(name, f"is not served{_instead_of(fields[name])}; {remedy}")


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    # By type as well: to Python 0 is False.
    return any(type(value) is type(each) and value == each for each in neutral)


def _instead_of(value: Any) -> str:
    """What came, where it is short enough to be told."""
    if isinstance(value, str) and len(value) <= 40:
        return f' as "{value}"'
    return f" as {describe_value(value)}" if type(value) in (int, float) else ""


_NO_FUNCTIONS = "functions are not called; describe them in a message and ask for JSON with response_format"
_ONLY_TEXT = "this server writes text alone; leave it out"
_CACHE = "what prompts have in common is kept as long as there is room; leave it out"
_SAY_IT = "say it in a message, or bound the text with max_completion_tokens"

# Of vLLM's own fields those that its users send most, besides the honoured ones.
_VLLM_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "use_beam_search": (False,),
}
_VLLM_REMEDIES = {
    "skip_special_tokens": "special tokens are never shown; leave it out",
    "include_stop_str_in_output": "a text ends before its stop string; leave it out and put the string behind it",
    "use_beam_search": "texts are sampled, or greedy with temperature 0; leave it out",
}

SAMPLING = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
        *("logit_bias", "seed", "n", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs"),
        *("stream", "stream_options", "response_format", "regex", "choice", "json_schema", "structured_outputs"),
    }
)
"""What both routes of text generation honour."""

COMPLETIONS = FieldPolicy(
    honoured=SAMPLING | {"prompt"},
    labels=LABELS,
    neutral={**_VLLM_NEUTRAL, "echo": (False,), "suffix": ("",), "best_of": (1,)},
    remedies={
        **_VLLM_REMEDIES,
        "echo": "the prompt is not repeated; put it before the text yourself",
        "suffix": "a text is continued, not filled in; leave it out",
        "best_of": "texts are not ranked; ask for all of them with n, and for logprobs to rank them by",
    },
)
CHAT = FieldPolicy(
    honoured=SAMPLING | {"messages", "max_completion_tokens", "top_logprobs"},
    labels=LABELS,
    neutral={
        **_VLLM_NEUTRAL,
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "modalities": (["text"],),
        "reasoning_effort": ("none",),
        "verbosity": ("medium",),
        "store": (False,),
        "service_tier": ("auto", "default"),
        "prompt_cache_retention": ("in_memory",),
        "add_generation_prompt": (True,),
        "continue_final_message": (False,),
        "echo": (False,),
    },
    remedies={
        **_VLLM_REMEDIES,
        "tools": _NO_FUNCTIONS,
        "tool_choice": _NO_FUNCTIONS,
        "parallel_tool_calls": _NO_FUNCTIONS,
        "functions": _NO_FUNCTIONS,
        "function_call": _NO_FUNCTIONS,
        "audio": _ONLY_TEXT,
        "modalities": _ONLY_TEXT,
        "reasoning_effort": _SAY_IT,
        "verbosity": _SAY_IT,
        "prediction": "a text that is likely makes nothing faster here; leave it out, the answer is the same",
        "web_search_options": "nothing is looked up; put what the model has to know into a message",
        "moderation": "texts are not judged; leave it out",
        "store": "nothing is stored; leave it out",
        "service_tier": "there is one tier; send priority (1 to 9) for a place in the queue",
        "prompt_cache_retention": _CACHE,
        "prompt_cache_options": _CACHE,
        "add_generation_prompt": "the model always answers in a turn of its own; leave it out",
        "continue_final_message": "the model always answers in a turn of its own; leave it out",
        "echo": "the last message is not repeated; put it before the answer yourself",
        "chat_template": "the model's own is used; to use another one send its prompt to /v1/completions",
        "chat_template_kwargs": "the model's template gets messages alone; send a prompt to /v1/completions",
    },
)
EMBEDDINGS = FieldPolicy(
    honoured=frozenset({"input", "encoding_format", "dimensions", "truncate"}),
    labels=frozenset({"user"}),
)
_PAIRS_REMEDIES = {
    "max_chunks_per_doc": "a document is scored as a whole, cut at the model's limit; send its parts as documents",
    "rank_fields": "a document is a text; put the fields into it",
}
RERANK = FieldPolicy(
    honoured=frozenset({"query", "documents", "top_n", "return_documents", "truncate"}),
    labels=frozenset({"user"}),
    remedies=_PAIRS_REMEDIES,
)
SCORE = FieldPolicy(
    honoured=frozenset({"text_1", "text_2", "queries", "documents", "truncate"}),
    labels=frozenset({"user"}),
)
TOKENIZE = FieldPolicy(
    honoured=frozenset({"prompt", "messages", "add_special_tokens", "return_token_strs"}),
    neutral={"add_generation_prompt": (True,), "continue_final_message": (False,)},
    remedies={name: CHAT.remedies[name] for name in ("add_generation_prompt", "continue_final_message")},
)
DETOKENIZE = FieldPolicy(honoured=frozenset({"tokens"}))
