"""Constrained texts from random logits match their constraints."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from frameworks.core.errors import InvalidInput
from frameworks.generation.sequences import TokenMatcher
from frameworks.generation.types import Constraint
from frameworks.pytorch.generation.sampling.sampler import Sampler
from frameworks.pytorch.generation.sampling.token_masks import TokenMasks
from tests.frameworks.pytorch.generation.sampling_cases import (
    CPU,
    ENDS,
    SIZE,
    allowed,
    choice,
    id_of,
    ids,
    random_logits,
    state_of,
)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "of": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/place"}]},
    },
    "required": ["name", "age", "of"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}


def schema(**fields: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(fields))


def walks(tokenizer: Tokenizer, matchers: Sequence[TokenMatcher], seed: int, haste: float = 6) -> list[str]:
    """Return the texts of random logits in one batch; `haste` favours closing and end tokens."""
    favoured = [token_id for text in ('"', "}", "]", '"}', "}}", "0") if (token_id := tokenizer.token_to_id(text))]
    states = [state_of(SIZE, seed=seed + i, request={"matcher": each}) for i, each in enumerate(matchers)]
    texts: list[list[int]] = [[] for _ in matchers]
    running = list(range(len(matchers)))
    sampler = Sampler(CPU, SIZE)
    for step in range(400):
        logits = random_logits(len(running), SIZE, seed=1000 * seed + step, scale=2.0)
        logits[:, [*favoured, *ENDS]] += haste
        results = sampler.sample(logits, [states[row] for row in running])
        for row, result in zip(tuple(running), results, strict=True):
            assert not isinstance(result, Exception), result
            states[row].accept(result.token_id)
            if result.token_id in ENDS:
                running.remove(row)
            else:
                texts[row].append(result.token_id)
        if not running:
            break
    assert not running, [tokenizer.decode(texts[row]) for row in running]
    return [tokenizer.decode(text, skip_special_tokens=False) for text in texts]


class TestTexts:
    def test_text_is_a_json_object(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        texts = walks(tokenizer, [masks.compile(Constraint("json_object")) for _ in range(30)], seed=1)
        assert all(isinstance(json.loads(text), dict) for text in texts)
        assert len(set(texts)) > 15

    def test_text_matches_schema(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        people = [json.loads(text) for text in walks(tokenizer, [masks.compile(schema(**PERSON))] * 1, seed=2)]
        people += [
            json.loads(text) for text in walks(tokenizer, [masks.compile(schema(**PERSON)) for _ in range(30)], 3)
        ]
        for person in people:
            assert {"name", "age", "of"} <= set(person) <= {"name", "age", "of", "tags"}
            assert isinstance(person["name"], str)
            assert len(person["name"]) <= 12
            assert isinstance(person["age"], int)
            assert 0 <= person["age"] <= 150
            assert len(person.get("tags", [])) <= 3
            assert set(person.get("tags", [])) <= {"a", "b"}
            assert person["of"] is None or isinstance(person["of"]["x"], int | float)

    @pytest.mark.parametrize(
        "pattern", [r"[a-z]{3,10}-\d{1,5}", r"^(yes|no), [a-zé日_]{1,8}!$", r"(?i)abc|ü.é", r"[^\n]{0,20}\n\t\"\\/"]
    )
    def test_text_matches_pattern(self, tokenizer: Tokenizer, masks: TokenMasks, pattern: str) -> None:
        for text in walks(tokenizer, [masks.compile(Constraint("regex", pattern)) for _ in range(20)], seed=4):
            assert re.fullmatch(pattern, text), text

    def test_text_is_one_of_choices(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        texts = ("yes", "no", "no, never", "", "é \"quoted\" \\ / \n\t\x00 日本 | 'x' /a/ #")
        found = walks(tokenizer, [masks.compile(choice(*texts)) for _ in range(60)], seed=5, haste=0)
        assert set(found) == set(texts)

    @settings(max_examples=10)
    @given(texts=st.lists(st.text(max_size=8), min_size=1, max_size=4), seed=st.integers(0, 99))
    def test_text_is_one_of_random_choices(
        self, tokenizer: Tokenizer, masks: TokenMasks, texts: list[str], seed: int
    ) -> None:
        assert set(walks(tokenizer, [masks.compile(choice(*texts)) for _ in range(3)], seed, 0)) <= set(texts)

    @pytest.mark.parametrize("name", ["<s>", "</s>", "<|end|>"])
    @pytest.mark.parametrize("kind", ["json_schema", "regex", "choice"])
    def test_name_of_special_token_is_text(self, tokenizer: Tokenizer, masks: TokenMasks, kind: Any, name: str) -> None:
        definitions = {
            "json_schema": (json.dumps({"const": f"{name}!"}), f'"{name}!"'),
            "regex": (re.escape(f"{name}!"), f"{name}!"),
            "choice": (json.dumps([f"{name}!"]), f"{name}!"),
        }
        definition, text = definitions[kind]
        assert tokenizer.encode(name, add_special_tokens=False).ids == [tokenizer.token_to_id(name)]
        assert walks(tokenizer, [masks.compile(Constraint(kind, definition))], seed=7) == [text]

    def test_batch_of_constraints_matches(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        asked = [Constraint("json_object"), schema(**PERSON), Constraint("regex", "a{2,}b"), choice("x", "xy")]
        anything, person, pattern, one = walks(tokenizer, [masks.compile(each) for each in asked], seed=6)
        assert isinstance(json.loads(anything), dict)
        assert json.loads(person)["age"] >= 0
        assert re.fullmatch("a{2,}b", pattern)
        assert one in ("x", "xy")

    def test_byte_fallback_tokens_are_masked(self) -> None:
        vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
        vocabulary |= {piece: 259 + i for i, piece in enumerate('▁abcxyz{}":,[]0123456789')}
        made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        matcher = TokenMasks(made, SIZE, [2]).compile(choice("abc é"))
        text = ""
        for _ in range(6):
            token_id = allowed(matcher)[0]
            matcher.accept(token_id)
            text += made.id_to_token(token_id) or ""
        assert text == "abc▁<0xC3><0xA9>"
        assert allowed(matcher) == [2]


class TestEnds:
    def test_only_ends_are_allowed_when_complete(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        matcher = masks.compile(choice("yes"))
        for token_id in tokenizer.encode("yes").ids:
            assert not set(ENDS) & set(allowed(matcher))
            matcher.accept(token_id)
        assert allowed(matcher) == [*ENDS]
        matcher.accept(2)
        assert allowed(matcher) == [*ENDS]

    def test_ends_are_allowed_beside_more_text(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        matcher = masks.compile(Constraint("regex", "[ab]+"))
        matcher.accept(id_of(tokenizer, "a"))
        may_come = allowed(matcher)
        assert {*ENDS, id_of(tokenizer, "b")} <= set(may_come)

    def test_special_and_padding_tokens_are_masked(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        may_come = allowed(masks.compile(Constraint("regex", r"(?s).*")))
        assert may_come[-1] < tokenizer.get_vocab_size()
        assert 0 not in may_come
        assert len(may_come) > 500

    @pytest.mark.parametrize("size", [512, 700, 899])
    def test_tokens_beyond_logits_are_ignored(self, tokenizer: Tokenizer, size: int) -> None:
        wide = allowed(TokenMasks(tokenizer, SIZE, ENDS).compile(Constraint("regex", r"(?s).*")))
        narrow = TokenMasks(tokenizer, size, [*ENDS, 2000]).compile(Constraint("regex", r"(?s).*"))
        assert allowed(narrow, size) == [token_id for token_id in wide if token_id < size]
        logits = random_logits(1, size)
        assert ids(logits, state_of(size, temperature=0.0, request={"matcher": narrow.copy()}))[0] in wide

    def test_copied_matcher_is_independent(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        first = masks.compile(choice("ab", "ac"))
        first.accept(id_of(tokenizer, "a"))
        second = first.copy()
        first.accept(id_of(tokenizer, "b"))
        assert allowed(first) == [*ENDS]
        assert allowed(second) == sorted(id_of(tokenizer, text) for text in "bc")

    def test_disallowed_token_raises(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        matcher = masks.compile(choice("ab"))
        matcher.accept(id_of(tokenizer, "x"))
        with pytest.raises(InvalidInput, match="doesn't satisfy the grammar") as told:
            allowed(matcher)
        assert told.value.field == "constraint"


class TestWhitespace:
    ALLOWED = (
        '{"a":1,"b":[1,2]}',
        '{"a": 1, "b": [1, 2]}',
        '{\n    "a": 1,\n    "b": [\n        1,\n        2\n    ]\n}',
        '{\n\t"a": 1,\n\t"b": []\n}',
    )
    REFUSED = ('{  "a"', "{\n\n", "{ \n", '{"a":\n' + " " * 21, " {", '{"a":1,"b":[]}\n')
    FIELDS = {  # noqa: RUF012
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "integer"}}},
        "required": ["a", "b"],
    }

    def goes_on(self, tokenizer: Tokenizer, matcher: TokenMatcher, text: str) -> bool:
        for token_id in tokenizer.encode(text).ids:
            if token_id not in allowed(matcher):
                return False
            matcher.accept(token_id)
        return True

    @pytest.mark.parametrize("text", ALLOWED)
    def test_common_whitespace_is_allowed(self, tokenizer: Tokenizer, masks: TokenMasks, text: str) -> None:
        for constraint in (schema(**self.FIELDS), Constraint("json_object")):
            matcher = masks.compile(constraint)
            assert self.goes_on(tokenizer, matcher, text)
            assert allowed(matcher) == [*ENDS]

    @pytest.mark.parametrize("text", REFUSED)
    def test_whitespace_is_bounded(self, tokenizer: Tokenizer, masks: TokenMasks, text: str) -> None:
        for constraint in (schema(**self.FIELDS), Constraint("json_object")):
            assert not self.goes_on(tokenizer, masks.compile(constraint), text)


class TestFormats:
    def test_unknown_formats_are_annotations(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        word = {"type": "string", "pattern": "^[ab]{1,3}$", "format": "password"}
        fields = {
            "format": {"$ref": "#/$defs/word"},
            "all": {"type": "array", "items": word, "maxItems": 2},
            "one": {"anyOf": [{"const": {"format": "password"}}, {"type": "integer", "format": "int32"}]},
        }
        whole = schema(**{**PERSON, "$defs": {"word": word}, "properties": fields, "required": [*fields]})
        for text in walks(tokenizer, [masks.compile(whole) for _ in range(10)], seed=5):
            value = json.loads(text)
            assert re.fullmatch("[ab]{1,3}", value["format"])
            assert all(re.fullmatch("[ab]{1,3}", each) for each in value["all"])
            assert isinstance(value["one"], int) or value["one"] == {"format": "password"}

    def test_known_format_is_held(self, tokenizer: Tokenizer, masks: TokenMasks) -> None:
        (text,) = walks(tokenizer, [masks.compile(schema(type="string", format="ipv4"))], seed=6)
        assert re.fullmatch(r'"(\d{1,3}\.){3}\d{1,3}"', text)


class TestRefusals:
    @pytest.mark.parametrize(
        ("constraint", "words"),
        [
            (Constraint("json_schema", '{"type":'), "EOF while parsing"),
            (Constraint("json_schema", "[1]"), "Expecting object schema"),
            (Constraint("json_schema", '{"type": "objec"}'), "Invalid type: objec"),
            (Constraint("json_schema", '{"not": {"type": "string"}}'), "Unimplemented keys"),
            (Constraint("json_schema", '{"$ref": "http://a.b/c"}'), "not present"),
            (Constraint("json_schema", '{"type": "string", "pattern": "("}'), "unclosed group"),
            (Constraint("json_schema", '{"a":' * 1000), "recursion limit"),
            (Constraint("json_schema", '{"type": "string", "format": 3}'), "Expected string for 'format'"),
            (Constraint("json_schema", '{"format":' * 5000), "recursion limit"),
            (Constraint("json_schema", '{"enum": []}'), "Unsatisfiable"),
            (Constraint("json_schema", '{"x": "' + "y" * 70_000 + '"}'), "at most 65536"),
            (Constraint("regex", "("), "unclosed group"),
            (Constraint("regex", r"(a)\1"), "backreferences are not supported"),
            (Constraint("regex", "(?=a)b"), "look-around"),
            (Constraint("regex", "a{1000000}"), "too many expressions"),
            (Constraint("regex", "\ud800"), "not valid Unicode"),
            (Constraint("choice", "yes"), "Expecting value"),
            (Constraint("choice", "[]"), "at least one string"),
            (Constraint("choice", '["a", 1]'), "at least one string"),
            (Constraint("choice", '{"a": "b"}'), "at least one string"),
            (Constraint("choice", "[" * 60_000), "at least one string"),
            (Constraint("choice", '["\\ud800"]'), "not valid Unicode"),
        ],
        ids=lambda value: str(value)[:60],
    )
    def test_invalid_constraint_is_refused_by_name(self, masks: TokenMasks, constraint: Constraint, words: str) -> None:
        with pytest.raises(InvalidInput) as refused:
            masks.compile(constraint)
        assert refused.value.field == "constraint"
        assert words in refused.value.message
        assert "non-verbose" not in refused.value.message
        assert len(refused.value.message) < 600

    @given(
        kind=st.sampled_from(["json_schema", "regex", "choice"]),
        definition=st.text(max_size=30) | st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["type", "enum", "items", "properties", "anyOf", "minLength", "pattern", "$ref"]), inner
            ),
        ).map(json.dumps),
    )  # fmt: skip
    def test_readable_constraint_starts(self, masks: TokenMasks, kind: Any, definition: str) -> None:
        try:
            matcher = masks.compile(Constraint(kind, definition))
        except InvalidInput:
            return
        assert allowed(matcher)

    def test_model_without_end_token_is_refused(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(InvalidInput, match="expected a model with an end-of-text token"):
            TokenMasks(tokenizer, SIZE, [5000]).compile(Constraint("json_object"))

    def test_unsupported_tokenizer_is_refused(self) -> None:
        words = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
        with pytest.raises(InvalidInput, match="this model's tokenizer cannot be constrained"):
            TokenMasks(words, 3, [2]).compile(Constraint("json_object"))
