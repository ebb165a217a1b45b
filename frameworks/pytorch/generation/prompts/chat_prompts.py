"""Make prompts of conversations: each content in the form that the chat template reads, and no message left out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from frameworks.core.errors import InvalidInput
from frameworks.generation.types import Conversation, Message, MessageCall, PromptEnding
from frameworks.pytorch.generation.prompts.chat_template import ChatTemplate

# Digits stay as they are in JSON, in upper case and without white space around them.
_MARK = "4815162342"
_NUMBERED = re.compile(_MARK + r"(\d{8})")
# As of transformers. A template that trims a message removes the space at its end.
_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
# A shorter content may be part of the template's own text.
_SURE_CHARACTERS = 32
# Bounds of the memory for forms of conversations.
_MAX_FORMS = 256
_MAX_FORM_MESSAGES = 16
_MAX_ROLE_CHARACTERS = 64

_Form = tuple[tuple[tuple[str, bool], ...], str | None, PromptEnding]
"""Role of each message and whether it has a content; reasoning effort; ending."""


def _mark(number: int) -> str:
    return f"{_MARK}{number:08}"


_USER = Message("user", "1")
# For each role, a conversation that templates accept. Mistral's templates want ids of 9 characters.
_TRIALS: Mapping[str, tuple[Message, ...]] = {
    "user": (Message("user", _mark(0)),),
    "system": (Message("system", _mark(0)), _USER),
    "assistant": (_USER, Message("assistant", _mark(1)), _USER),
    "tool": (
        _USER,
        Message("assistant", "", (MessageCall("abcdefghi", "f", "{}"),)),
        Message("tool", _mark(2), tool_call_id="abcdefghi", name="f"),
    ),
}


class ChatPrompts:
    """The prompts of a chat template. Thread-safe."""

    def __init__(self, template: ChatTemplate) -> None:
        """Find the roles whose content the template reads as a list of parts."""
        self.template = template
        # Forms of conversations whose messages the template shows.
        self._shown_forms: set[_Form] = set()
        self._part_roles: frozenset[str] = frozenset()
        for role, talk in _TRIALS.items():
            with_parts = self._part_roles | {role}
            number = next(i for i, message in enumerate(talk) if message.content == _mark(i))
            if number not in self._shown(talk, self._part_roles) and number in self._shown(talk, with_parts):
                self._part_roles = with_parts

    def render(self, conversation: Conversation) -> str:
        """Return the prompt. Raises InvalidInput as ChatTemplate.render, and if the template leaves a message out."""
        messages = conversation.messages
        if conversation.ending == "last_message":
            text = self._begun(conversation)
        else:
            text = self._rendered(conversation, self._roles_of(messages))
        if not _are_surely_shown(messages, text):
            self._check_shown(conversation)
        return text

    def _begun(self, conversation: Conversation) -> str:
        """Return the prompt up to the end of the last message's content, as transformers' continue_final_message.

        The tag shows whether the template keeps the space at the end of a message.
        """
        *others, last = conversation.messages
        tagged = replace(conversation, messages=(*others, replace(last, content=last.content + _TAG)))
        text = self._rendered(tagged, self._roles_of(tagged.messages))
        end = text.rfind(_TAG.strip())
        if end < 0:
            raise InvalidInput(
                "messages",
                "expected a last message that the model's chat template writes whole, got one that it leaves out; "
                "omit continue_final_message, or end with a message of the user",
            )
        return text[:end] if text.startswith(_TAG, end) else text[:end].rstrip()

    def _check_shown(self, conversation: Conversation) -> None:
        """Raise InvalidInput for a message that leaves no trace: neither its content nor one of its calls.

        Conversations of one form differ in what the marks replace, so the template is asked once.
        """
        messages = conversation.messages
        form = _form_of(conversation)
        if form in self._shown_forms:
            return
        marked = tuple(_marked(message, number) for number, message in enumerate(messages))
        shown = self._shown(marked, self._roles_of(messages), conversation)
        for number, message in enumerate(messages):
            if (message.content or message.tool_calls) and number not in shown:
                raise InvalidInput(
                    "messages",
                    "expected messages that the model's chat template reads, got message "
                    f'{number + 1} of {len(messages)} with the role "{message.role}", which it leaves out; omit the '
                    "message, or send its text with another role",
                )
        if form is not None and len(self._shown_forms) < _MAX_FORMS:
            self._shown_forms.add(form)

    def _shown(
        self, marked: Sequence[Message], part_roles: frozenset[str], like: Conversation | None = None
    ) -> frozenset[int]:
        """Return the numbers of the marks in a prompt; all of them if the template refuses the marks."""
        conversation = replace(like or Conversation(()), messages=tuple(marked))
        try:
            text = self._rendered(conversation, part_roles)
        except InvalidInput:
            return frozenset() if like is None else frozenset(range(len(marked)))
        return frozenset(map(int, _NUMBERED.findall(text)))

    def _rendered(self, conversation: Conversation, part_roles: frozenset[str]) -> str:
        return self.template.render(
            conversation.messages,
            conversation.tools,
            conversation.reasoning_effort,
            part_roles,
            conversation.variables,
            begins_response=conversation.ending == "response",
        )

    def _roles_of(self, messages: Sequence[Message]) -> frozenset[str]:
        """Return the roles with parts. Roles without a trial are as the user's."""
        if "user" not in self._part_roles:
            return self._part_roles
        return self._part_roles | {message.role for message in messages if message.role not in _TRIALS}


def _form_of(conversation: Conversation) -> _Form | None:
    """Return the form of a short conversation of contents alone; None for any other."""
    messages = conversation.messages
    if conversation.tools or conversation.variables or len(messages) > _MAX_FORM_MESSAGES:
        return None
    roles = []
    for message in messages:
        if (
            len(message.role) > _MAX_ROLE_CHARACTERS
            or message.tool_calls
            or message.tool_call_id
            or message.name
            or message.reasoning
        ):
            return None
        roles.append((message.role, bool(message.content)))
    return tuple(roles), conversation.reasoning_effort, conversation.ending


def _are_surely_shown(messages: Sequence[Message], text: str) -> bool:
    """Return whether the prompt has each content, in order, and each is too long to be there by chance."""
    end = 0
    for message in messages:
        content = message.content.strip()
        begin = text.find(content, end) if len(content) >= _SURE_CHARACTERS else -1
        if begin < 0:
            return False
        end = begin + len(content)
    return True


def _marked(message: Message, number: int) -> Message:
    """Return a message whose content and names of calls are the mark of its number, without images."""
    calls = tuple(replace(call, name=_mark(number)) for call in message.tool_calls)
    return replace(message, content=_mark(number) if message.content else "", tool_calls=calls, images=())
