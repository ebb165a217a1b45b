"""Put pairs of texts into the chat template of a language model that ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from frameworks.core.errors import InvalidInput, InvalidModel
from frameworks.generation.types import Message
from frameworks.pytorch.generation.prompts.chat_template import ChatTemplate
from frameworks.pytorch.generation.prompts.tokenizer import read_chat_template
from frameworks.text.config import TextConfig
from frameworks.text.pair_scores import has_chat_template, has_named_templates
from frameworks.text.tokenizer import TextTokenizer
from frameworks.types import TokenBatch, Truncation

log = structlog.get_logger(__name__)

_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The prompt that Qwen3-Reranker was trained with. Older copies of its folder have no template for it.
_QWEN3_RERANKER = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {{{{ messages[0].content if messages[0].role == 'system' else '{_INSTRUCTION}' }}}}\n"
    "<Query>: {{ messages[-2].content }}\n<Document>: {{ messages[-1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>{{ '\\n\\n' }}"
)
_QWEN3_TOKENS = ("<|im_start|>", "<|im_end|>")
# A pair, and pairs that differ from it in one text. The texts begin differently and differ in length.
_PROBES = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
# Where these are in a template, it reads contents as lists of parts; the families are exceptions.
_SIGNS_OF_PARTS = ("content[0]", ".type", "'type'", '"type"', "message.content[")
_FAMILIES_WITHOUT_PARTS = ("apertus", "deepseek_v3", "gpt_oss", "seed_oss")
_ROLES = frozenset(("system", "query", "document"))
# Two texts without a common end.
_FILLERS = ("0", "1 2 3 4")


def load_tokenizer(folder: Path, config: TextConfig) -> TextTokenizer:
    """Return the tokenizer of a model with one label: pairs are put into its chat template, if it has one for the roles
    `query` and `document`.

    Raises InvalidModel as TextTokenizer, and where the files need a template that there is not.
    """
    plain = TextTokenizer(folder, config)
    template = _pair_template(folder, config, plain)
    return plain if template is None else PairTokenizer(folder, config, template)


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """A chat template for pairs. `part_roles`: as of ChatTemplate.render."""

    template: ChatTemplate
    part_roles: frozenset[str] = frozenset()

    def render(self, pair: Sequence[str], instruction: str = "") -> str:
        """Return the prompt of a query and a document, with an instruction unless it is empty. Raises InvalidInput."""
        query, document = pair
        messages = [Message("query", query), Message("document", document)]
        system = [Message("system", instruction)] if instruction else []
        return self.template.render([*system, *messages], part_roles=self.part_roles)

    def reads_pairs(self) -> bool:
        """Whether both texts reach the prompt, as sentence-transformers tests it."""
        try:
            prompt, *others = map(self.render, _PROBES)
        except InvalidInput:
            return False
        return prompt not in others


class PairTokenizer(TextTokenizer):
    """Read a pair as a prompt: the chat template with a message for each text. A single text is read as it is.

    The prompt of the model's files is the message of the system, the instruction.
    """

    def __init__(self, folder: Path, config: TextConfig, template: "PairTemplate") -> None:
        """Raises InvalidModel as TextTokenizer, and where the template alone exceeds the model's limit."""
        super().__init__(folder, config)
        self._template = template
        # No special tokens are added to those of the template.
        self._limit = self._lengths.limit(config.max_tokens)
        first, second = self._template_ids([(filler, filler) for filler in _FILLERS])
        if len(first) > config.max_tokens:
            raise InvalidModel(
                f"{folder}: the limit of {config.max_tokens} tokens is used up by {len(first)} of the chat template"
            )
        self._ending = _common_end(first, second)

    def tokenize_pairs(self, pairs: Sequence[tuple[str, str]], truncate: Truncation, first: int = 0) -> TokenBatch:
        """As TextTokenizer.tokenize_pairs. Of a long prompt the end of the template is kept, as in
        sentence-transformers.
        """
        max_tokens, keeps_end = self._config.max_tokens, self._keeps_end(truncate)
        if truncate:
            # Text beyond the limit is not rendered.
            needed = partial(self._needed, num_tokens=max_tokens, keeps_end=keeps_end)
            pairs = [(needed(one), needed(other)) for one, other in pairs]
        else:
            self._refuse_long([max(pair, key=len) for pair in pairs], first)
        rows = self._template_ids(pairs, first)
        for index, ids in enumerate(rows):
            if len(ids) > max_tokens and not truncate:
                raise self._too_long(first + index, len(ids))
            if len(ids) >= max_tokens:
                kept = ids[len(ids) - max_tokens :] if keeps_end else ids
                rows[index] = kept[: max_tokens - len(self._ending)] + self._ending
        return TokenBatch(rows)

    def _template_ids(self, pairs: Sequence[tuple[str, str]], first: int = 0) -> list[list[int]]:
        prompts = [self._rendered(pair, position) for position, pair in enumerate(pairs, start=first)]
        return [encoding.ids for encoding in self._encodings(prompts, first, add_special_tokens=False)]

    def _rendered(self, pair: tuple[str, str], position: int) -> str:
        try:
            return self._template.render(pair, self._config.prompt)
        except InvalidInput as error:
            raise InvalidInput(f"text[{position}]", error.reason) from error


def _pair_template(folder: Path, config: TextConfig, tokenizer: TextTokenizer) -> PairTemplate | None:
    """Return the template for pairs; None where a pair is tokenized as two texts."""
    wanted = config.pair_messages
    if wanted.is_used is False:
        return None
    found = read_chat_template(folder, wanted.variables) if has_chat_template(folder) else None
    if found is not None:
        in_parts = _reads_parts(folder, found, config) if wanted.in_parts is None else wanted.in_parts
        template = PairTemplate(found, _ROLES if in_parts else frozenset())
        if template.reads_pairs():
            return template
    if wanted.is_used:
        raise InvalidModel(
            f"{folder}: expected a chat template for messages of the roles query and document, got "
            f"{'another' if found else 'none'}; add the chat_template.jinja of the published model"
        )
    if config.answers is None:
        if found is not None:
            log.warning("the chat template reads no pairs: they are tokenized as two texts", folder=str(folder))
        return None
    if any(tokenizer.id_of(token) is None for token in _QWEN3_TOKENS):
        raise InvalidModel(
            f"{folder}: score_tokens: expected a chat template for messages of the roles query and document, got "
            f"{'another' if found else 'none'}; write one into chat_template.jinja"
        )
    return PairTemplate(ChatTemplate(_QWEN3_RERANKER, {}))


def _reads_parts(folder: Path, template: ChatTemplate, config: TextConfig) -> bool:
    """Whether contents are lists of parts, as sentence-transformers infers it: for named templates they always are."""
    if config.model_type in _FAMILIES_WITHOUT_PARTS:
        return False
    return has_named_templates(folder) or any(sign in template.source for sign in _SIGNS_OF_PARTS)


def _common_end(first: list[int], second: list[int]) -> list[int]:
    """Return the tokens that both end with; none where one is the end of the other."""
    pairs = zip(reversed(first), reversed(second), strict=False)
    num_common = next((count for count, (one, other) in enumerate(pairs) if one != other), 0)
    return first[len(first) - num_common :]
