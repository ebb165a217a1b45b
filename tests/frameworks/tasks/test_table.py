"""The parameters of the table are those of the pipelines of transformers, with bounds."""

import inspect
from enum import Enum
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers.pipelines import SUPPORTED_TASKS

from frameworks.pytorch.tasks.mask_generation import MaskGeneration
from frameworks.pytorch.tasks.question_answering import QuestionAnsweringPipeline
from frameworks.pytorch.tasks.text_to_audio import TextToAudio
from frameworks.tasks.parameters import check_parameters
from frameworks.tasks.table import TASKS
from frameworks.tasks.types import TaskParameter, TaskSpec

OF_AN_INPUT = {("zero-shot-object-detection", "candidate_labels")}
"""Parameters that the pipeline reads in each input."""
NEEDS = {"delimiter": {"is_split_into_words": True}}
"""Parameters that have no effect alone."""

PARAMETERS = [(spec, parameter) for spec in TASKS.values() for parameter in spec.parameters]


def _pipeline_of(task: str) -> Any:
    if task == "question-answering":
        return QuestionAnsweringPipeline
    if task == "mask-generation":
        return MaskGeneration
    if task == "text-to-audio":
        return TextToAudio
    module, _, name = SUPPORTED_TASKS[task]["impl"].rpartition(".")
    return getattr(import_module(module), name)


def _loaded() -> Any:
    """The fields of a loaded pipeline that `_sanitize_parameters` reads."""
    return SimpleNamespace(
        tokenizer=SimpleNamespace(is_fast=True, model_max_length=512, mask_token_id=4),
        model=SimpleNamespace(config=SimpleNamespace(num_labels=3), base_model_prefix="bert"),
        _args_parser=SimpleNamespace(_parse_labels=list),
        get_target_ids=np.array,
        type="ctc",
    )


def _value(parameter: TaskParameter) -> Any:
    """A value that is allowed and is not the default."""
    match parameter.type:
        case "boolean":
            return not parameter.default
        case "integer" | "number":
            return 2 if (parameter.maximum or 0) >= 2 else 1
        case "string":
            return parameter.choices[-1] if parameter.choices else "-"
        case "template":
            return "about {}"
        case "numbers":
            return [[1, 2]]
    return ["one", "two"]


@pytest.mark.parametrize(("spec", "parameter"), PARAMETERS, ids=[f"{s.name}-{p.name}" for s, p in PARAMETERS])
def test_parameter_is_one_of_the_pipeline(spec: TaskSpec, parameter: TaskParameter) -> None:
    pipeline = _pipeline_of(spec.name)
    value = _value(parameter)
    required = {each.name: _value(each) for each in spec.parameters if each.required}
    assert check_parameters(spec, required | {parameter.name: value})[parameter.name] == value
    if (spec.name, parameter.name) in OF_AN_INPUT:
        assert f'inputs["{parameter.name}"]' in inspect.getsource(pipeline.preprocess)
        return
    sanitize = partial(pipeline._sanitize_parameters, _loaded(), **NEEDS.get(parameter.name, {}))
    given = sanitize(**{parameter.name: value})
    assert repr(given) != repr(sanitize()), "the pipeline ignores it"
    for method, keywords in zip(("preprocess", "_forward", "postprocess"), given, strict=True):
        inspect.signature(getattr(pipeline, method)).bind_partial(**keywords)


@pytest.mark.parametrize("spec", TASKS.values(), ids=TASKS)
def test_defaults_are_those_of_the_pipeline(spec: TaskSpec) -> None:
    pipeline = _pipeline_of(spec.name)
    methods = (pipeline.preprocess, pipeline._forward, pipeline.postprocess)
    theirs = {name: each.default for method in methods for name, each in inspect.signature(method).parameters.items()}
    for parameter in spec.parameters:
        default = theirs.get(parameter.name, inspect.Parameter.empty)
        if default not in (None, inspect.Parameter.empty) and parameter.default is not None:
            default = default.value if isinstance(default, Enum) else default
            default = "longest" if default is True and parameter.name == "padding" else default
            assert parameter.default == default, parameter.name


@pytest.mark.parametrize(("spec", "parameter"), PARAMETERS, ids=[f"{s.name}-{p.name}" for s, p in PARAMETERS])
def test_parameter_has_description_and_bounds(spec: TaskSpec, parameter: TaskParameter) -> None:
    assert parameter.description.endswith(".")
    if parameter.type in ("integer", "number"):
        assert parameter.minimum is not None
    assert parameter.maximum is not None or parameter.choices or parameter.type == "boolean"
    if parameter.default is not None:
        required = {each.name: _value(each) for each in spec.parameters if each.required}
        checked = check_parameters(spec, required | {parameter.name: parameter.default})
        assert checked[parameter.name] == parameter.default


@pytest.mark.parametrize("spec", TASKS.values(), ids=TASKS)
def test_required_fields_are_known(spec: TaskSpec) -> None:
    assert set(spec.required) <= {*spec.inputs, *spec.members}
    assert spec.required
    assert not spec.labels
