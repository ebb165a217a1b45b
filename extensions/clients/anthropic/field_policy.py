"""Fields of Anthropic's API that the server refuses, with the remedy of each, and those that it ignores."""

from app.protocols.shared.fields.policy import FieldPolicy, Ignored, Refusal

_RUNS_NO_TOOLS = "the server itself runs no tools: omit the field"

_OF_ALL = {
    "mcp_servers": Refusal(_RUNS_NO_TOOLS, ([],)),
    # No message is removed. A prompt that does not fit is refused.
    "context_management": Ignored(neutral=({}, {"edits": []})),
    "speed": Ignored(neutral=("standard",)),
    # The key names the tenant.
    "user_profile_id": Ignored(),
    "workspace_id": Ignored(),
}
COUNT_TOKENS = FieldPolicy(_OF_ALL)
MESSAGES = FieldPolicy(
    {
        **_OF_ALL,
        "container": Refusal(_RUNS_NO_TOOLS),
        "diagnostics": Ignored(),
        "inference_geo": Ignored(),
        # There is one tier, and `priority` for a position in the queue.
        "service_tier": Ignored(neutral=("auto", "standard_only")),
    }
)
TOOL = FieldPolicy(
    {
        "allowed_callers": Refusal("only the model calls tools: omit the field", (["direct"],)),
        "defer_loading": Refusal("the model gets all tools: omit the field", (False,)),
        "input_examples": Refusal("put the examples into the description", ([],)),
    }
)
