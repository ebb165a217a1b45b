"""Refused and ignored fields of an object within a body."""

from typing import Any

import pytest

from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal
from frameworks.core.errors import InvalidInput

POLICY = FieldPolicy({"watermark": Refusal("omit the field", (False,)), "speed": Ignored()})


def test_object_without_refused_fields_is_copied() -> None:
    options = {"watermark": False, "speed": 2, "seed": 1}
    fields: dict[str, Any] = {"options": options}
    assert POLICY.apply_to(fields, "options") == ("options.speed",)
    assert fields == {"options": {"seed": 1}}
    assert options == {"watermark": False, "speed": 2, "seed": 1}


def test_refused_field_is_named_with_object() -> None:
    with pytest.raises(InvalidInput, match=r"options\.watermark: expected false, got true; omit the field"):
        POLICY.apply_to({"options": {"watermark": True}}, "options")


@pytest.mark.parametrize("fields", [{}, {"options": None}, {"options": [1]}])
def test_other_values_are_left(fields: dict[str, Any]) -> None:
    before = dict(fields)
    assert POLICY.apply_to(fields, "options") == ()
    assert fields == before
