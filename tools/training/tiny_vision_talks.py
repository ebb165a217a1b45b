"""Make conversations about pictures, and their chat template: the second stage of ``tiny-vision``.

A turn of a user shows up to three pictures, in any order with its text. It asks for shape, colour or both, or says
anything else. A turn without a picture is about the latest ones. Without any, the answer asks for one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

PAD, BEGIN, END_OF_TEXT, IMAGE = "<pad>", "<s>", "</s>", "<image>"
END_OF_TURN = "<|end|>"
SPECIAL_TOKENS = (PAD, BEGIN, END_OF_TEXT, IMAGE, "<|system|>", "<|user|>", "<|assistant|>", END_OF_TURN)
"""The first tokens of the vocabulary; the index is the id."""

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('the roles are system, user and assistant') }}
    {%- endif %}
    {{- '<|' + message['role'] + '|>' }}
    {%- if message['content'] is string %}
        {{- message['content'] | trim }}
    {%- else %}
        {%- for part in message['content'] or [] %}
            {{- '<image>' if part['type'] == 'image' else part['text'] | trim }}
        {%- endfor %}
    {%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""

NO_PICTURE = "I see no picture. Send me one, and I name the shape and its colour."

BOTH = (
    "What is this?", "What is it?", "What do you see?", "What can you see?", "What is in the picture?",
    "What is in this image?", "What does the picture show?", "What does this image show?", "What is shown here?",
    "Describe the picture.", "Describe this picture.", "Describe the image.", "Describe this image in detail.",
    "Which shape and colour?", "Which shape is it, and which colour?", "What colour and shape is this?",
    "Name the shape and its colour.", "Name shape and colour.", "Tell me what you see.", "What's this?",
    "Tell me about this picture.", "Tell me about the image.", "What's in the picture?", "What am I looking at?",
    "Can you describe it?", "Can you see this?", "Caption this image.", "Write a caption.", "Say what you see.",
    "Look at this.", "Look!", "And this?", "And this one?", "What is this a picture of?", "What have I drawn?",
    "Explain this image.", "Do you know what this is?", "Could you tell me what this is?", "Is it red?",
    "Is this a star?", "Is there a circle?", "Is it a blue square?", "",
)  # fmt: skip
BOTH_OF_SEVERAL = (
    "What are these?", "What are they?", "What do you see?", "What do the pictures show?", "What is in the pictures?",
    "Describe the pictures.", "Describe both images.", "Describe these images.", "Which shapes and colours?",
    "Name each shape and its colour.", "Name the shapes and their colours.", "Tell me about these pictures.",
    "Compare the pictures.", "What is the difference?", "Look at these.", "And these?", "What is this?",
    "What is in each picture?", "Caption these images.", "",
)  # fmt: skip
COLOUR = (
    "What colour is it?", "Which colour is it?", "What color is it?", "Which color is this?", "What is the colour?",
    "What is its colour?", "What colour is this?", "What colour is the shape?", "What color is the shape?",
    "What colour does it have?", "Which colour has the shape?", "Name the colour.", "Name the color.",
    "Tell me the colour.", "Tell me its color.", "Only the colour, please.", "And the colour?", "Which colour?",
)  # fmt: skip
COLOUR_OF_SEVERAL = (
    "What colours are they?", "Which colours do they have?", "What colors are these?", "Name the colours.",
    "Name their colours.", "Tell me the colors.", "Which colours?", "And their colours?", "What colour is each?",
)  # fmt: skip
SHAPE = (
    "What shape is it?", "Which shape is it?", "What shape is this?", "Which shape is this?", "What is the shape?",
    "Which shape do you see?", "What shape do you see?", "Name the shape.", "Tell me the shape.",
    "What kind of shape is it?", "Which form has it?", "Only the shape, please.", "And the shape?", "Which shape?",
    "What shape is in the picture?",
)  # fmt: skip
SHAPE_OF_SEVERAL = (
    "What shapes are they?", "Which shapes are these?", "What shapes do you see?", "Which shapes do you see?",
    "Name the shapes.", "Tell me the shapes.", "Which shapes?", "And their shapes?", "What shape is each?",
)  # fmt: skip
OTHER = (
    "Hello!", "Hi", "Hi there.", "Thanks.", "Thank you!", "Good morning.", "How are you?", "Who are you?", "Yes", "No",
    "What can you do?", "Tell me a joke.", "What is the capital of France?", "How old are you?", "Help me.", "ok",
    "Why is the sky blue?", "Write a poem about the sea.", "What is a list?", "How warm is it in Bern?", "Test",
    "Count to ten.", "I like trains.", "Where do you live?", "What time is it?", "Please answer in one word.",
)  # fmt: skip
"""Texts that ask for nothing the model knows."""
SYSTEM = (
    "You are a helpful assistant.", "Answer briefly.", "Be brief.", "You describe pictures.", "Answer in one sentence.",
    "You are an assistant that sees images.",
)  # fmt: skip
_ASKED = {"both": (BOTH, BOTH_OF_SEVERAL), "colour": (COLOUR, COLOUR_OF_SEVERAL), "shape": (SHAPE, SHAPE_OF_SEVERAL)}
_NUMBERS_OF_PICTURES = (0, 1, 1, 1, 1, 1, 2, 2, 3)
_ORDINALS = ("first", "second", "third")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Named = tuple[str, str]
"""(colour, shape)."""


@dataclass(frozen=True, slots=True)
class Talk:
    """`messages`: as of a chat API, whose contents are lists of parts. `pictures`: indices, in their order."""

    messages: list[dict[str, Any]]
    pictures: list[int]


def sentences(names: Sequence[Named]) -> Iterator[str]:
    """Yield all questions and answers, from which the tokenizer learns. `names`: of pictures."""
    for of_one, of_several in _ASKED.values():
        yield from (*of_one, *of_several)
    yield from (*OTHER, *SYSTEM, NO_PICTURE)
    for asked in _ASKED:
        yield from (answer(asked, [named]) for named in names)
        yield answer(asked, names)


def answer(asked: str, seen: Sequence[Named]) -> str:
    """Return the right answer about pictures, in their order. `asked`: `both`, `colour` or `shape`."""
    if not seen:
        return NO_PICTURE
    if asked == "both":
        text = _listed([_with_article(f"{colour} {shape}") for colour, shape in seen])
        return text[0].upper() + text[1:] + "."
    words = [colour if asked == "colour" else _with_article(shape) for colour, shape in seen]
    return f"{'It is' if len(seen) == 1 else 'They are'} {_listed(words)}."


def talk_about(names: Sequence[Named], chance: Random) -> Talk:
    """Return a conversation of one to three turns about pictures drawn at random. `names`: of all pictures."""
    messages: list[dict[str, Any]] = []
    pictures: list[int] = []
    seen: list[Named] = []
    if chance.random() < 0.15:
        messages.append({"role": "system", "content": chance.choice(SYSTEM)})
    for _ in range(chance.choice((1, 1, 1, 1, 2, 3))):
        shown = [chance.randrange(len(names)) for _ in range(chance.choice(_NUMBERS_OF_PICTURES))]
        pictures += shown
        seen = [names[index] for index in shown] or seen
        asked = chance.choice(("both", "both", "both", "colour", "shape"))
        is_other = chance.random() < (0.1 if shown else 0.4)
        text = _other(chance) if is_other else _varied(chance.choice(_ASKED[asked][len(seen) > 1]), chance)
        messages.append({"role": "user", "content": _parts(text, len(shown), chance)})
        messages.append({"role": "assistant", "content": answer("both" if is_other else asked, seen)})
    return Talk(messages, pictures)


def _parts(text: str, num_pictures: int, chance: Random) -> list[dict[str, str]]:
    """Return the content of a message: most pictures come first, some last, or each behind its number."""
    image, said = {"type": "image"}, [{"type": "text", "text": text}] if text else []
    manner = chance.random()
    if manner < 0.65:
        return [image] * num_pictures + said
    if manner < 0.85 or not num_pictures:
        return said + [image] * num_pictures
    form = chance.choice(("The {}:", "The {} one:", "{}", "This is the {} one"))
    numbered = [[{"type": "text", "text": form.format(each)}, image] for each in _ORDINALS[:num_pictures]]
    return [part for pair in numbered for part in pair] + said


def _varied(text: str, chance: Random) -> str:
    """Return a text as people type it: some in lower case, some without a full stop or with a request."""
    kind = chance.random()
    if kind < 0.1:
        return text.lower()
    if kind < 0.2:
        return text.rstrip("?.!")
    if kind < 0.25:
        return text.lower().rstrip("?.!")
    return f"{chance.choice(('Please', 'Hello!', 'OK.', 'Hi,'))} {text}" if kind < 0.3 and text else text


def _other(chance: Random) -> str:
    """Return a text that asks for nothing the model knows: a known one, or any words."""
    if chance.random() < 0.6:
        return _varied(chance.choice(OTHER), chance)
    words = ["".join(chance.choices(_LETTERS, k=chance.randint(1, 8))) for _ in range(chance.randint(1, 6))]
    return " ".join(words) + chance.choice(("", ".", "?"))


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _listed(words: Sequence[str]) -> str:
    """Return words as English lists them."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
