"""A chat template shows the format of its family."""

import pytest

from frameworks.core.settings.entries import ToolFormat
from frameworks.generation.tools.formats import TextFormat, format_of_template, thinks_by_template
from tests.support.models.tool_templates import HERMES, TEMPLATES

NAMES = {"messages", "tools"}


@pytest.mark.parametrize(("tools", "template"), TEMPLATES.items())
def test_template_shows_format_of_family(tools: ToolFormat, template: str) -> None:
    assert format_of_template(template, NAMES) == tools


def test_template_without_tools_has_no_format() -> None:
    assert format_of_template(HERMES, {"messages"}) is None
    assert format_of_template("{{ tools }}{{ messages }}", NAMES) is None


def test_format_of_other_family_is_not_guessed() -> None:
    assert format_of_template(HERMES + "<tool_call><function=f>", NAMES) is None


def test_thinking_shows_in_template() -> None:
    assert thinks_by_template(HERMES)
    assert not thinks_by_template(TEMPLATES["mistral"])


def test_marks_are_those_of_format() -> None:
    assert TextFormat().marks == ()
    assert TextFormat("hermes", thinks=True).marks == ("<think>", "</think>", "<tool_call>", "</tool_call>")
