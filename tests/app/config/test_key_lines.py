"""Lines of keys, for every form of a key in TOML."""

from collections.abc import Iterator
from typing import Any

import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from app.config.issues import Location
from app.config.key_lines import key_lines

EVERY_WAY = '''a = 1 # b = 2
[server]
host = "a#[b]"
"po\\u0072t" = 3
x . y.'z z' = [1, # c = 1
 [2,
 3]]

[[models.onnx_models]]
name = """
multi "" line
a = 3 \\"""
""""
s = \'\'\'it's
''x\'\'\'\'
p = {a = 1, b = {c = "}", d = \'{\'}}
[models.onnx_models.sub]
q=1
[[models.onnx_models]]
name=1979-05-27 07:32:00
d=[{a=1},
{b=2}, ]
[ models . "torch" ]
[models]
'''


def test_key_lines_finds_every_form_of_key() -> None:
    tomli.loads(EVERY_WAY)
    first, second = ("models", "onnx_models", 0), ("models", "onnx_models", 1)
    assert key_lines(EVERY_WAY) == {
        ("a",): 1,
        ("server",): 2,
        ("server", "host"): 3,
        ("server", "port"): 4,
        ("server", "x"): 5,
        ("server", "x", "y"): 5,
        ("server", "x", "y", "z z"): 5,
        ("server", "x", "y", "z z", 0): 5,
        ("server", "x", "y", "z z", 1): 6,
        ("server", "x", "y", "z z", 1, 0): 6,
        ("server", "x", "y", "z z", 1, 1): 7,
        ("models",): 24,  # its own header, though keys in it came before
        ("models", "onnx_models"): 9,
        first: 9,
        (*first, "name"): 10,
        (*first, "s"): 14,
        (*first, "p"): 16,
        (*first, "p", "a"): 16,
        (*first, "p", "b"): 16,
        (*first, "p", "b", "c"): 16,
        (*first, "p", "b", "d"): 16,
        (*first, "sub"): 17,
        (*first, "sub", "q"): 18,
        second: 19,
        (*second, "name"): 20,
        (*second, "d"): 21,
        (*second, "d", 0): 21,
        (*second, "d", 0, "a"): 21,
        (*second, "d", 1): 22,
        (*second, "d", 1, "b"): 22,
        ("models", "torch"): 23,
    }


def test_key_lines_invalid_text_keeps_earlier_lines() -> None:
    assert key_lines("a = 1\nb = \n???") == {("a",): 1, ("b",): 2}
    assert key_lines("a = 1\n[b\nc = 2") == {("a",): 1}
    assert ("a",) in key_lines("a = " + "[" * 5000)


def locations(value: Any, outer: Location = ()) -> Iterator[Location]:
    for step, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield (*outer, step)
        yield from locations(inner, (*outer, step))


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {as_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"\n # a comment with ] and ' in it\n{as_toml(inner)}," for inner in value) + "\n]"
    return quoted(value) if isinstance(value, str) else str(value).lower()


def quoted(text: str) -> str:
    return (
        '"'
        + "".join(f"\\U{ord(character):08x}" if ord(character) < 48 else character for character in quotable(text))
        + '"'
    )


def quotable(text: str) -> str:
    return text.replace("\\", "/").replace("\x7f", "")


keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\\\x7f"), max_size=8)
values = st.recursive(
    st.one_of(st.integers(0, 99), st.booleans(), keys),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(keys, values, max_size=4))
def test_key_lines_agree_with_tomli(document: dict[str, Any]) -> None:
    text = "\n".join(f"{quoted(key)} = {as_toml(value)}" for key, value in document.items())
    lines = key_lines(text)
    assert set(lines) == set(locations(tomli.loads(text)))
    for location, line in lines.items():
        if isinstance(location[-1], str):
            assert quoted(location[-1]) in text.split("\n")[line - 1]
