"""Test the checker: every fault of wiring, keys and types is found, all at once, with its place."""

from dataclasses import replace

import pytest

from frameworks.types import StatePair, StateSpec, TensorType
from tests.support.pipelines import call, checked, faults_of, pipeline, step, tensor_spec, text_spec

AB = {"a": tensor_spec(4, 3), "b": tensor_spec(3, 2)}
NO_SUCH = {"name": "one", "function": "no", "inputs": {"x": "x"}, "outputs": {"y": "text"}}
CHAIN = (call("one", "a", {"x": "x"}), call("two", "b", {"x": "one"}))


class TestChecker:
    def test_chain_of_models_has_their_types(self) -> None:
        typed = checked(pipeline(["x"], {"y": "two.y"}, *reversed(CHAIN)), AB)
        assert typed.inputs == {"x": TensorType("float32", (-1, 4))}
        assert typed.outputs == {"y": TensorType("float32", (-1, 2))}
        assert [entry.name for entry in typed.graph.order] == ["one", "two"]

    def test_types_are_unknown_before_models_load(self) -> None:
        assert faults_of(pipeline(["x"], {"y": "two.anything"}, *CHAIN), models=["a", "b"]) == []

    def test_all_faults_are_found_at_once(self) -> None:
        entry = pipeline(
            ["x", "idle"],
            {"y": "nowhere", "z": "two"},
            call("one", "aa", {"x": "xx"}),
            call("two", "b", {"x": "one"}, top_k=3),
            call("two", "b", {"x": "one"}),
            {"name": "both", "model": "a", "function": "f", "inputs": {"x": "x"}},
        )
        assert faults_of(entry, AB) == [
            "steps[1].top_k: expected a key of a model, got top_k; its keys are model, normalize, truncate",
            "steps[3]: expected exactly one of model, builtin, function and collection; keep one of them",
            'steps[0].model: expected a model of the server, got "aa"; did you mean "a"?',
            'steps[2].name: expected a unique name, got "two" again; choose another',
            'steps[0].inputs.x: expected an input of the pipeline or a step, got "xx"; did you mean "x"?',
            'outputs.y: expected a step, got "nowhere"; there is both, one, two',
            'steps[3].name: expected a step or an output that reads "both", got none; read it, or remove the step',
            'inputs.idle: expected a step that reads "idle", got none; read it, or remove the input',
        ]

    def test_unknown_model_hides_no_fault_of_types(self) -> None:
        entry = pipeline(
            {"x": "float32[-1, 4]"},
            {"y": "two", "odds": "odds", "hits": "find"},
            call("one", "aa", {"x": "x"}),
            call("two", "b", {"x": "x"}),
            step("odds", "softmax", {"values": "one"}, axis=-1),
            step("wide", "softmax", {"values": "x"}, axis=3),
            {"name": "find", "collection": "docs", "inputs": {"vectors": "wide"}},
        )
        assert faults_of(entry, AB) == [
            'steps[0].model: expected a model of the server, got "aa"; did you mean "a"?',
            'steps[4].collection: expected a collection of the server, got "docs"; there is none',
            'steps[1].inputs.x: expected float32[-1, 3], got float32[-1, 4] from "x"; wire another value',
            "steps[3].axis: expected a tensor that has the axis 3, got 2 axes",
        ]

    def test_cycle_is_named(self) -> None:
        entry = pipeline(
            ["x"],
            {"y": "c"},
            step("a", "concat", {"one": "x", "two": "b"}),
            step("b", "softmax", {"values": "a"}),
            step("c", "softmax", {"values": "b"}),
        )
        [fault] = faults_of(entry)
        assert fault.startswith("steps[0].inputs: expected steps without a cycle, got ")
        assert "a -> b -> a" in fault or "b -> a -> b" in fault

    def test_step_that_reads_itself_is_refused(self) -> None:
        [fault] = faults_of(pipeline(["x"], {"y": "a"}, step("a", "concat", {"one": "x", "two": "a"})))
        assert "without a cycle" in fault

    @pytest.mark.parametrize(
        ("entry", "fault"),
        [
            (
                pipeline(["x"], {"y": "two"}, call("one", "b", {"x": "x"}), call("two", "a", {"x": "one"})),
                'steps[1].inputs.x: expected float32[-1, 4], got float32[-1, 2] from "one"; wire another value',
            ),
            (
                pipeline({"x": "text"}, {"y": "one"}, call("one", "a", {"x": "x"})),
                'steps[0].inputs.x: expected float32[-1, 4], got text from "x"; wire another value',
            ),
            (
                pipeline(["x"], {"y": "one.z"}, call("one", "a", {"x": "x"})),
                'outputs.y: expected an output of "one", got "z"; there is y',
            ),
            (
                pipeline(["x"], {"y": "one"}, call("one", "a", {"z": "x"})),
                (
                    'steps[0].inputs.z: expected an input of the step, got "z"; there is x\n'
                    "steps[0].inputs: expected the input x, float32[-1, 4], got none; wire it"
                ),
            ),
            (
                pipeline(["x"], {"y": "two"}, CHAIN[0], step("two", "top_k", {"values": "one"}, top_k=4)),
                "steps[1].top_k: expected at most 3, the columns of values, got 4",
            ),
            (
                pipeline(["x"], {"y": "one"}, call("one", "words", {"text": "x"}, normalize=True)),
                "steps[0].normalize: expected a model of task embed, got classify; remove this key",
            ),
            (
                pipeline({"x": "float33[2]"}, {"y": "one"}, call("one", "a", {"x": "x"})),
                'inputs.x: expected "text", "image", or a tensor like "float32[-1, 4]", got "float33[2]"',
            ),
            (
                pipeline(["x"], {"y": "one", "z": "two"}, call("one", "a", {"x": "x"}), call("two", "b", {"x": "x"})),
                "inputs.x: expected one type, got float32[-1, 4] and float32[-1, 3]; read it by one of them",
            ),
            (
                pipeline(["x"], {"y": "one"}, step("one", "crop", {"image": "x"})),
                "steps[0].inputs: expected the input boxes, float32[-1, 4], got none; wire it",
            ),
            (
                pipeline(["x"], {"y": "one"}, step("one", "image", {"image": "x"})),
                "outputs.y: expected a tensor, text or predictions, got image; read it in a step",
            ),
            (
                pipeline(["x"], {"y": "one"}, NO_SUCH),
                (
                    'steps[0].function: expected an entry point of the group roundhouse.steps, got "no"; install the '
                    "package that has it"
                ),
            ),
            (
                pipeline(["x"], {"y": "one"}, step("one", "labels", {"scores": "x"})),
                "steps[0].labels: expected either labels or model, got both or none; set one of them",
            ),
            (
                pipeline(["x"], {"y": "one"}, step("one", "chunk", {"text": "x"}, chunk_size=5, overlap=5)),
                "steps[0].overlap: expected fewer characters than chunk_size, 5, got 5",
            ),
        ],
        ids=range(13),
    )  # fmt: skip
    def test_fault_has_place_and_remedy(self, entry: object, fault: str) -> None:
        specs = {**AB, "words": text_spec("classify", ("good", "bad"))}
        assert "\n".join(faults_of(entry, specs)) == fault  # type: ignore[arg-type]

    def test_model_that_generates_text_is_refused(self) -> None:
        entry = pipeline({"x": "text"}, {"y": "one"}, call("one", "llm", {"text": "x"}))
        [fault] = faults_of(entry, {"llm": text_spec("generate")})
        assert fault == (
            "steps[0].model: expected a model with tensors or scores, got one that generates text; leave it out"
        )

    def test_model_with_state_is_refused(self) -> None:
        entry = pipeline(["x"], {"y": "one"}, call("one", "vad", {"x": "x"}))
        state = StateSpec((StatePair("h", "hn", "float32", (-1, 2), 0),), 1024, 1.0)
        [fault] = faults_of(entry, {"vad": replace(tensor_spec(4, 3), state=state)})
        assert fault == (
            "steps[0].model: expected a model without a state, as a pipeline has no sequences; leave it out"
        )

    def test_labels_of_a_model_are_its_own(self) -> None:
        entry = pipeline({"x": "float32[-1, 2]"}, {"y": "one"}, step("one", "labels", {"scores": "x"}, model="words"))
        typed = checked(entry, {"words": text_spec("classify", ("good", "bad"))})
        assert str(typed.outputs["y"]) == "predictions"
        [fault] = faults_of(entry, {"words": text_spec("embed")})
        assert fault == 'steps[0].model: expected a model with labels, got "words" without any; set labels'
