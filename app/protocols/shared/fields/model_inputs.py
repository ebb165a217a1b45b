"""Describe the inputs of a model in error messages."""

from frameworks.types import ModelSpec, ValueSpec


def explain_expected_input(spec: ModelSpec) -> str:
    """Say which task the model has and which field the caller should send."""
    if spec.generation is not None:
        images = "" if spec.generation.vision is None else ", which may have images"
        return f"this model's task is generate; send the field prompt, or messages{images}"
    if spec.pipeline is not None:
        return f"this model's task is {spec.task}; send the field {' or '.join(spec.pipeline.inputs)}"
    if spec.image is not None:
        fields = "text, or image" if spec.text is not None else "image"
        return f"this model's task is {spec.task}; send the field {fields}"
    if spec.text is not None:
        return f"this model's task is {spec.task}; send the field text"
    return f"this model reads no text; its inputs are {describe_inputs(spec)}"


def describe_inputs(spec: ModelSpec) -> str:
    """List each input as `name: dtype [shape]`; the shape is left out where the model declares no rank."""
    return ", ".join(_describe_input(declared) for declared in spec.inputs)


def _describe_input(declared: ValueSpec) -> str:
    return f"{declared.name}: {declared.type} {list(declared.shape) if declared.shape is not None else ''}".rstrip()
