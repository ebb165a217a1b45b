"""Answer questions with a part of a text: the pipeline of transformers 4, which transformers 5 no longer has.

The arithmetic is that of `QuestionAnsweringPipeline` of transformers 4.57, Copyright The HuggingFace Team, licensed
under the Apache License, Version 2.0. Changed: fast tokenizers and PyTorch only, bounds before the work, and the length
of a batch never changes an answer.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from numpy.typing import NDArray
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES
from transformers.pipelines.base import ChunkPipeline

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.pytorch.tasks.answer_spans import select_starts_ends
from frameworks.tasks.parts import check_parts

_BEFORE = ("padding", "doc_stride", "max_question_len", "max_seq_len")
_AFTER = ("top_k", "max_answer_len", "handle_impossible_answer", "align_to_words")
_NO_NULL_SCORE = 1_000_000.0
_UNSET = 1_000_000
"""A tokenizer whose limit is above this has none: transformers then sets 1e30."""


class QuestionAnsweringPipeline(ChunkPipeline):  # type: ignore[misc]  # transformers has no types
    """Find the answer to a question in a context. Input: `{"question": …, "context": …}`.

    Output: `{"score", "start", "end", "answer"}`, or a list of them where there is not exactly one. `start`, `end`:
    characters of the context. `score`: the product of two probabilities; those of equal answers are added.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, **options: Any) -> None:
        """Raise InvalidModel for a tokenizer that is not a fast one."""
        super().__init__(**options)
        if not self.tokenizer.is_fast:
            raise InvalidModel(
                f"tokenizer: expected a fast one (tokenizer.json), got {type(self.tokenizer).__name__}; convert it"
            )
        self.check_model_type(MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES)

    def _sanitize_parameters(self, **given: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return the parameters of `preprocess`, `_forward` and `postprocess`. Raise InvalidInput."""
        for name in ("top_k", "max_answer_len"):
            number = given.get(name)
            if number is not None and number < 1:
                raise InvalidInput(f"parameters.{name}", f"expected an integer of 1 or more, got {number}; raise it")
        before, after = (
            {name: given[name] for name in names if given.get(name) is not None} for names in (_BEFORE, _AFTER)
        )
        return before, {}, after

    def preprocess(
        self,
        example: dict[str, str],
        padding: str | bool = "do_not_pad",
        doc_stride: int | None = None,
        max_question_len: int = 64,
        max_seq_len: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield each part of the context with the question: tensors [1, tokens], and what `postprocess` reads.

        `max_question_len` changes nothing: in transformers 4 only slow tokenizers read it. Raises InvalidInput.
        """
        del max_question_len
        question, context = _text_of(example, "question"), _text_of(example, "context")
        if max_seq_len is None:
            max_seq_len = min(self.tokenizer.model_max_length, 384)
        if doc_stride is None:
            doc_stride = min(max_seq_len // 2, 128)
        self._check_lengths(question, context, max_seq_len, doc_stride)
        question_first = self.tokenizer.padding_side == "right"
        encoded = self.tokenizer(
            text=question if question_first else context,
            text_pair=context if question_first else question,
            padding=padding,
            truncation="only_second" if question_first else "only_first",
            max_length=max_seq_len,
            stride=doc_stride,
            return_token_type_ids=True,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        parts = len(encoded["input_ids"])
        for part in range(parts):
            fields = ("input_ids", "attention_mask", "token_type_ids")
            tensors = {name: torch.tensor([encoded[name][part]]) for name in fields if name in encoded}
            yield {
                "example": example,
                "is_last": part == parts - 1,
                "p_mask": torch.tensor([self._masked(encoded, part, question_first)]),
                "encoding": encoded[part],
                **tensors,
            }

    def _masked(self, encoded: Any, part: int, question_first: bool) -> list[int]:
        """Return 1 for each token that is in no answer: of the question, and special ones except the first.

        A tokenizer that pads on the left masks none, as in transformers 4.
        """
        classifies = self.tokenizer.cls_token_id
        return [
            int(question_first and sequence != 1 and (classifies is None or token != classifies))
            for token, sequence in zip(encoded["input_ids"][part], encoded.sequence_ids(part), strict=True)
        ]

    def _check_lengths(self, question: str, context: str, max_seq_len: int, doc_stride: int) -> None:
        """Raise InvalidInput where the tokenizer cannot form parts, or where these have too many tokens in all."""
        known = self.tokenizer.model_max_length
        if known <= _UNSET and max_seq_len > known:
            raise InvalidInput("parameters.max_seq_len", f"expected at most {known}, got {max_seq_len}; lower it")
        available = max_seq_len - self.tokenizer.num_special_tokens_to_add(pair=True)
        if doc_stride >= available:
            raise InvalidInput(
                "parameters.doc_stride",
                f"expected less than {available} with max_seq_len {max_seq_len}, got {doc_stride}; lower it",
            )
        asked = self._count(question)
        if asked >= available:
            raise InvalidInput("question", f"expected less than {available} tokens, got {asked}; shorten it")
        check_parts(
            self._count(context),
            available - asked,
            doc_stride,
            max_seq_len,
            field="context",
            shared_field="parameters.doc_stride",
        )

    def _count(self, text: str) -> int:
        """Return the tokens of a text without special ones."""
        return len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _forward(self, inputs: dict[str, Any]) -> dict[str, Any]:
        read = {name: inputs[name] for name in self.tokenizer.model_input_names if name in inputs}
        if "use_cache" in inspect.signature(self.model.forward).parameters:
            read["use_cache"] = False
        output = self.model(**read)
        if isinstance(output, dict):
            return {"start": output["start_logits"], "end": output["end_logits"], **inputs}
        return {"start": output[0], "end": output[1], **inputs}

    def postprocess(
        self,
        model_outputs: list[dict[str, Any]],
        top_k: int = 1,
        handle_impossible_answer: bool = False,
        max_answer_len: int = 15,
        align_to_words: bool = True,
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Return the answers of all parts of a context, the most likely first."""
        null_score = _NO_NULL_SCORE
        answers: dict[str, dict[str, Any]] = {}  # by their text in lower case
        for output in model_outputs:
            mask = output.get("attention_mask")
            own = self._own_tokens(output)
            starts, ends, scores, null = select_starts_ends(
                _as_numpy(output["start"])[:, own],
                _as_numpy(output["end"])[:, own],
                _as_numpy(output["p_mask"])[:, own],
                None if mask is None else _as_numpy(mask)[:, own],
                top_k=top_k * 2 + 10 if align_to_words else top_k,  # spans of the same words become one answer
                max_answer_len=max_answer_len,
            )
            null_score = min(null_score, null)
            context = output["example"]["context"]
            for start, end, score in zip(starts.tolist(), ends.tolist(), scores.tolist(), strict=True):
                first, last = self._characters(output["encoding"], start, end, align_to_words)
                answer = context[first:last]
                known = answers.get(answer.lower())
                if known is not None:
                    known["score"] += score
                else:
                    answers[answer.lower()] = {"score": score, "start": first, "end": last, "answer": answer}
        found = list(answers.values())
        if handle_impossible_answer:
            found.append({"score": null_score, "start": 0, "end": 0, "answer": ""})
        found = sorted(found, key=lambda each: each["score"], reverse=True)[:top_k]
        return found[0] if len(found) == 1 else found

    def _own_tokens(self, output: dict[str, Any]) -> slice:
        """Return the tokens of a part without those that pad it to the length of its batch."""
        tokens, padded = len(output["encoding"]), output["input_ids"].shape[-1]
        return slice(padded - tokens, padded) if self.tokenizer.padding_side == "left" else slice(tokens)

    def _characters(self, encoding: Any, start: int, end: int, align_to_words: bool) -> tuple[int, int]:
        """Return the characters of the context from one token to another, both included."""
        context = 1 if self.tokenizer.padding_side == "right" else 0
        if align_to_words:
            words = encoding.token_to_word(start), encoding.token_to_word(end)
            if None not in words:
                spans = [encoding.word_to_chars(word, sequence_index=context) for word in words]
                if None not in spans:
                    return int(spans[0][0]), int(spans[1][1])
        return int(encoding.offsets[start][0]), int(encoding.offsets[end][1])


def _text_of(example: dict[str, str], member: str) -> str:
    text = example.get(member)
    if not isinstance(text, str) or not text:
        raise InvalidInput(member, f"expected a text, got {'an empty one' if text == '' else 'none'}; send one")
    return text


def _as_numpy(values: torch.Tensor) -> NDArray[Any]:
    """Return a tensor on the CPU as an array; half precision becomes float32, as numpy has no sums for it."""
    return (values.float() if values.is_floating_point() else values).numpy()
