"""The body of Triton's generate extension: a text or a conversation, and the options of a language model.

Triton's extension leaves the options to the model. Here they have vLLM's names, or TensorRT-LLM's names for the same
options. The inputs of infer have these names too.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from app.protocols.shared.bodies import MAX_INT32
from app.protocols.shared.fields.constraints import ConstraintFields, StructuredField
from app.protocols.shared.fields.generation import (
    MAX_TOP_LOGPROBS,
    Messages,
    NumChoices,
    SamplingFields,
    StoppingFields,
)
from frameworks.types import LAST_PRIORITY

DEFAULT_MAX_TOKENS = 20
"""The default of the generate API of the Open Inference Protocol."""
MAX_TIMEOUT_US = 2**63 - 1


class GenerateTextRequest(ConstraintFields, StoppingFields, SamplingFields):
    """Exactly one of `text_input` and `messages`. Options are members of the body or of `parameters`, under the names
    of Triton's backends for language models. A number may be a string. Unknown options have no effect.
    """

    model_config = ConfigDict(extra="allow")

    text_input: str | None = Field(None, description="The text to continue.", examples=["The function returns"])
    messages: Messages | None = Field(
        None, description="A conversation, for models that have a chat template. Models that see read its images."
    )
    id: str | None = Field(None, description="Repeated in the response.")
    parameters: dict[str, Any] | None = Field(
        None, description="More options.", examples=[{"temperature": 0, "max_tokens": 20}]
    )
    max_tokens: Annotated[int | None, Field(ge=1, le=MAX_INT32)] = Field(
        None, description=f"Maximum number of generated tokens. Default: {DEFAULT_MAX_TOKENS}."
    )
    n: NumChoices = 1
    end_id: int | None = Field(None, ge=-1, le=MAX_INT32, description="A token that ends a text; -1: none.")
    stream: bool | None = Field(
        None, description="generate_stream: false sends the whole text in one event. generate: true is refused."
    )
    exclude_input_in_output: bool | None = Field(
        None,
        description="false: put text_input before a whole text; a stream never has it. Default: true, the only value "
        "with messages.",
    )
    return_finish_reason: bool | None = Field(
        None, description="infer: return the output finish_reason. generate always has it."
    )
    return_num_input_tokens: bool | None = Field(
        None, description="infer: return the output num_input_tokens. generate always has it."
    )
    return_num_output_tokens: bool | None = Field(
        None, description="infer: return the output num_output_tokens. generate always has it."
    )
    return_log_probs: bool | None = Field(None, description="Return TensorRT-LLM's output_log_probs and cum_log_probs.")
    return_cumulative_logprob: bool | None = Field(None, description="Return vLLM's cumulative_logprob.")
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | bool | None = Field(
        None, description="The number of most likely tokens in return_logprobs; true: 0."
    )
    return_logprobs: bool | None = Field(None, description="Return vLLM's logprobs, as JSON in a string.")
    structured_outputs: StructuredField = Field(
        None, description="A constraint of the text, as an object or as its JSON in a string."
    )
    guided_decoding: StructuredField = Field(None, description="vLLM's former name of structured_outputs.")
    guided_decoding_guide_type: Literal["json", "json_schema", "regex"] | None = Field(
        None, description="TensorRT-LLM's kind of constraint."
    )
    guided_decoding_guide: str | None = Field(None, description="The JSON schema or the pattern of the constraint.")
    priority: int | None = Field(
        None, ge=0, le=LAST_PRIORITY, description="Position in the queue: 1 is first; 0 is the default, 5."
    )
    timeout: int | None = Field(
        None, ge=0, le=MAX_TIMEOUT_US, description="Microseconds until the deadline of the request; 0: none."
    )
