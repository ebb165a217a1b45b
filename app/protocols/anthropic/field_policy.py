"""Fields of Anthropic's API that the server refuses, with the remedy of each."""

from app.protocols.field_policy import FieldPolicy, Refusal

_RUNS_NO_TOOLS = "the server itself runs no tools: omit the field"

_OF_ALL = {
    "mcp_servers": Refusal(_RUNS_NO_TOOLS, ([],)),
    "context_management": Refusal("no message is removed: send those that the model shall read", ({},)),
    "speed": Refusal("there is one speed: omit the field", ("standard",)),
    "user_profile_id": Refusal("the key names the tenant: omit the field"),
    "workspace_id": Refusal("the key names the tenant: omit the field"),
}
COUNT_TOKENS = FieldPolicy(_OF_ALL)
MESSAGES = FieldPolicy(
    {
        **_OF_ALL,
        "container": Refusal(_RUNS_NO_TOOLS),
        "diagnostics": Refusal("the server stores no requests: omit the field"),
        "inference_geo": Refusal("the server is where it is: omit the field"),
        "service_tier": Refusal(
            "there is one tier: send priority (1 to 9) for a position in the queue", ("auto", "standard_only")
        ),
    }
)
TOOL = FieldPolicy(
    {
        "allowed_callers": Refusal("only the model calls tools: omit the field", (["direct"],)),
        "defer_loading": Refusal("the model gets all tools: omit the field", (False,)),
        "input_examples": Refusal("put the examples into the description", ([],)),
    }
)
