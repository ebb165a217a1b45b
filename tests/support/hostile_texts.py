"""Bodies that ask for much work on texts: long texts, many stop strings, many log probabilities, many small objects.

Each function returns the body of one request as JSON can write it. `model`: a generating model for prompts and
messages, of an embedding model for texts.
"""

from typing import Any

Body = dict[str, Any]

LONG_CHARACTERS = 3_200_000
"""The prompts of the audit."""


def long_prompt(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/completions: a prompt far beyond every context. Refused with 400 before it is tokenized."""
    return {"model": model, "prompt": _words(characters), "max_tokens": 1}


def long_prompts(model: str, num_prompts: int = 128, characters: int = 24_000) -> Body:
    """For /v1/completions: as many prompts as a request may have, each beyond the context. 400."""
    return {"model": model, "prompt": [_words(characters)] * num_prompts, "max_tokens": 1}


def long_conversation(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/chat/completions: one message far beyond the context, which the chat template renders first. 400."""
    return {"model": model, "messages": [{"role": "user", "content": _words(characters)}], "max_tokens": 1}


def many_messages(model: str, num_messages: int = 8_000) -> Body:
    """For /v1/chat/completions: a conversation of empty messages. 400, or a text if the context holds it."""
    return {"model": model, "messages": [{"role": "user", "content": ""}] * num_messages, "max_tokens": 1}


def special_token_prompt(model: str, num_tokens: int, n: int = 128) -> Body:
    """For /v1/completions: token ids without text, for many choices. Answered if `num_tokens` fit the context."""
    return {"model": model, "prompt": [1] * num_tokens, "n": n, "max_tokens": 1}


def long_text(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/embeddings: words far beyond the limit. Answered: only a beginning is tokenized."""
    return {"model": model, "input": _words(characters)}


def long_word(model: str, characters: int = LONG_CHARACTERS, letter: str = "a") -> Body:
    """For /v1/embeddings: one word without an end, the most expensive text for WordPiece. Answered."""
    return {"model": model, "input": letter * characters}


def blank_text(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/embeddings: white space, which has no tokens at all. Answered."""
    return {"model": model, "input": " " * characters}


def refused_text(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/embeddings: a text beyond the limit that must not be cut. 400."""
    return {"model": model, "input": _words(characters), "truncate": False}


def many_texts(model: str, num_texts: int = 2_000, characters: int = 600) -> Body:
    """For /v1/embeddings: a long list, tokenized in pieces. Answered; the model computes for seconds."""
    return {"model": model, "input": [_words(characters)] * num_texts}


def long_pair(model: str, characters: int = LONG_CHARACTERS // 2) -> Body:
    """For /v1/rerank: a long query and a long document. Answered from their beginnings."""
    return {"model": model, "query": _words(characters), "documents": [_words(characters)]}


def many_documents(model: str, num_documents: int = 18_000) -> Body:
    """For /v1/rerank: many documents as objects, whose validation takes longer than their texts. Answered."""
    return {"model": model, "query": "a", "documents": [{"text": "a"}] * num_documents}


def counted_text(model: str, characters: int = LONG_CHARACTERS) -> Body:
    """For /v1/tokenize: a text that is too long to list its tokens. 400."""
    return {"model": model, "prompt": _words(characters)}


def countable_text(model: str, characters: int = 128 * 1024) -> Body:
    """For /v1/tokenize: the longest text that every model accepts. Answered."""
    return {"model": model, "prompt": _words(characters)}


def stop_strings(model: str) -> Body:
    """For /v1/completions: as many stop strings, and as long, as are accepted. Answered."""
    strings = [chr(ord("a") + i) + ("ab" * 64)[:127] for i in range(16)]
    return {"model": model, "prompt": "The", "max_tokens": 1, "stop": strings}


def too_many_stop_characters(model: str) -> Body:
    """For /v1/completions: the stop strings of the audit, 16 KB of them. 400."""
    return {"model": model, "prompt": "The", "max_tokens": 1, "stop": [chr(97 + i) * 1024 for i in range(16)]}


def logit_biases(model: str, vocabulary_size: int) -> Body:
    """For /v1/completions: a bias for as many tokens as are accepted. Answered."""
    biases = {str(token_id): 1.0 for token_id in range(min(1024, vocabulary_size))}
    return {"model": model, "prompt": "The", "max_tokens": 1, "logit_bias": biases}


def log_probabilities(model: str, max_tokens: int = 48) -> Body:
    """For /v1/chat/completions: the highest number of log probabilities: 128 texts, 20 alternatives. Answered."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "n": 128,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 20,
    }


def too_many_log_probabilities(model: str) -> Body:
    """For /v1/chat/completions: one token more than the bound on log probabilities. 400 that names max_tokens."""
    return log_probabilities(model, max_tokens=49)


def _words(characters: int) -> str:
    return ("The quick brown fox jumps over the lazy dog, again. " * (characters // 52 + 1))[:characters]
