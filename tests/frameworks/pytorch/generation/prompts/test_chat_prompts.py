"""Each chat template gets contents in the form that it reads, and a message that it leaves out is refused."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageCall, MessageImage
from frameworks.pytorch.generation.prompts.chat_prompts import ChatPrompts
from frameworks.pytorch.generation.prompts.chat_template import ChatTemplate
from tests.support.models.generation_tokenizers import CHAT_TEMPLATE, write_generation_tokenizer
from tests.support.models.tool_templates import TEMPLATES as TOOL_TEMPLATES

VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
PARTS = "{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}"
ONLY_PARTS = "{% for message in messages %}<{{ message['role'] }}>" + PARTS + "{% endfor %}"
FIRST_PART = "{% for message in messages %}<{{ message.role }}>{{ message.content[0].text }}{% endfor %}"
EITHER = (
    "{% for message in messages %}<{{ message.role }}>{% if message.content is string %}{{ message.content }}"
    "{% else %}" + PARTS + "{% endif %}{% endfor %}"
)
PARTS_OF_USERS = (
    "{% for message in messages %}<{{ message.role }}>{% if message.role == 'user' %}" + PARTS + "{% else %}"
    "{{ message.content | trim }}{% endif %}{% endfor %}"
)
TALK = (
    Message("system", "You are an engine."),
    Message("user", "Where?"),
    Message("assistant", "Here."),
    Message("user", ""),
)


def prompt_of(template: str, *messages: Message, tools: str = "") -> str:
    return ChatPrompts(ChatTemplate(template, VARIABLES)).render(Conversation(messages, tools))


def as_sent(message: Message, has_parts: bool) -> dict[str, Any]:
    content: Any = [{"type": "text", "text": message.content}] if has_parts else message.content
    return {"role": message.role, "content": content}


@pytest.mark.parametrize(
    ("template", "part_roles"),
    [
        (CHAT_TEMPLATE, ()),
        (EITHER, ()),
        (ONLY_PARTS, ("system", "user", "assistant")),
        (FIRST_PART, ("system", "user", "assistant")),
        (PARTS_OF_USERS, ("user",)),
    ],
)
def test_prompt_equals_transformers(tmp_path: Path, template: str, part_roles: tuple[str, ...]) -> None:
    write_generation_tokenizer(tmp_path, chat_template=template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    sent = [as_sent(message, message.role in part_roles) for message in TALK]
    text = tokenizer.apply_chat_template(sent, add_generation_prompt=True, tokenize=False)
    assert prompt_of(template, *TALK) == text
    assert "Where?" in text


TRIMMING = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("last", ["Here", "Here ", " Here  is\n", "a CONTINUE_FINAL_MESSAGE_TAG b", "<assistant>"])
@pytest.mark.parametrize(
    ("template", "part_roles"),
    [(CHAT_TEMPLATE, ()), (EITHER, ()), (ONLY_PARTS, ("system", "user", "assistant")), (TRIMMING, ())],
)
def test_continued_prompt_equals_transformers(
    tmp_path: Path, template: str, part_roles: tuple[str, ...], last: str
) -> None:
    write_generation_tokenizer(tmp_path, chat_template=template)
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    talk = (*TALK[:2], Message("assistant", last))
    prompts = ChatPrompts(ChatTemplate(template, VARIABLES))
    sent = [as_sent(message, message.role in part_roles) for message in talk]
    wanted = tokenizer.apply_chat_template(sent, continue_final_message=True, tokenize=False)
    assert prompts.render(Conversation(talk, ending="last_message")) == wanted
    plain = tokenizer.apply_chat_template(sent, add_generation_prompt=False, tokenize=False)
    assert prompts.render(Conversation(talk, ending="messages")) == plain
    assert last.strip() in wanted


def test_left_out_last_message_is_refused() -> None:
    prompts = ChatPrompts(ChatTemplate("{% for message in messages[:1] %}{{ message.content }}{% endfor %}", VARIABLES))
    talk = (Message("user", "Where?"), Message("assistant", "Here"))
    with pytest.raises(InvalidInput, match="omit continue_final_message"):
        prompts.render(Conversation(talk, ending="last_message"))


def test_unknown_role_has_form_of_user() -> None:
    assert prompt_of(ONLY_PARTS, Message("stoker", "Coal.")) == "<stoker>Coal."


CALLS = (
    Message("user", "How warm?"),
    Message("assistant", "", (MessageCall("abcdefghi", "f", "{}"),)),
    Message("tool", "12", tool_call_id="abcdefghi", name="f"),
)


@pytest.mark.parametrize("template", TOOL_TEMPLATES.values())
def test_messages_with_calls_are_shown(template: str) -> None:
    assert "12" in prompt_of(template, *CALLS)


@pytest.mark.parametrize(
    ("template", "messages", "number"),
    [
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", TALK, 1),
        ("{{ messages[0].content }}{{ messages[1].content }}", TALK, 3),
        ("{% for m in messages %}{{ m.text }}{% endfor %}", TALK[1:], 1),
        # A short content may be part of the template's own text.
        ("Where? {{ messages[0].content }}", TALK, 2),
        ("Where is the engine of this train now? {{ messages[1].content }}", (Message("user", "is"), *TALK[1:]), 1),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", CALLS, 2),
    ],
)
def test_message_left_out_is_refused(template: str, messages: tuple[Message, ...], number: int) -> None:
    role = messages[number - 1].role
    expected = f'^messages: expected .*, got message {number} of {len(messages)} with the role "{role}".*; omit'
    with pytest.raises(InvalidInput, match=expected):
        prompt_of(template, *messages)


def test_changed_content_is_no_message_left_out() -> None:
    long = "  two lines\nof a text that is written as JSON, and so not found as it was sent "
    assert "\\n" in prompt_of(
        "{% for m in messages %}{{ m.content | trim | tojson }}{% endfor %}", Message("user", long)
    )
    assert prompt_of("{{ messages[0].content.split('</think>')[-1] | upper }}", Message("user", "a</think>b")) == "B"


WITH_IMAGES = (
    "{% for message in messages %}<{{ message.role }}>{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}"
    "{% endif %}{% endfor %}"
)


def seen(content: str, *ats: int, role: str = "user") -> Message:
    """Return a message with an image at each offset of its content."""
    return Message(role, content, images=tuple(MessageImage(b"1", at, "image") for at in ats))


def test_images_are_shown_between_texts() -> None:
    prompt = prompt_of(WITH_IMAGES, Message("system", "Be short."), seen("Which is it?", 0, 6, 6, 12))
    assert prompt == "<system>Be short.<user><image>Which <image><image>is it?<image>"
    assert prompt_of(WITH_IMAGES, seen("", 0), seen("", 0, role="tool")) == "<user><image><tool><image>"


def test_text_divided_by_image_is_not_left_out() -> None:
    content = "A text of more than sixty characters, in whose middle is the only image."
    prompt = prompt_of(WITH_IMAGES, seen(content, 40))
    assert prompt == f"<user>{content[:40]}<image>{content[40:]}"


@pytest.mark.parametrize("last", [seen("I see", 0), seen("I see ", 1), seen("I see", 5), seen("", 0)])
def test_message_with_image_is_continued(last: Message) -> None:
    talk = (Message("user", "Look."), Message("assistant", last.content, images=last.images))
    prompts = ChatPrompts(ChatTemplate(WITH_IMAGES, VARIABLES))
    whole = prompts.render(Conversation(talk, ending="messages"))
    assert prompts.render(Conversation(talk, ending="last_message")) == whole


def test_left_out_message_with_image_is_refused() -> None:
    template = WITH_IMAGES.replace("in messages", "in messages if message.role == 'user'")
    with pytest.raises(InvalidInput, match='got message 2 of 3 with the role "tool", which it leaves out'):
        prompt_of(template, seen("Look.", 5), seen("Seen.", 0, role="tool"), Message("user", "Well?"))
    assert prompt_of(template, seen("Look.", 5), seen("Again.", 0)) == "<user>Look.<image><user><image>Again."
