"""What is wrong, in OpenAI's body: `{"error": {"message", "type", "param", "code"}}`."""

import re

import orjson

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
# What InvalidInput and UnknownField put before their messages.
_NAMES_A_FIELD = frozenset({"invalid_input", "unknown_field"})
_FIELD = re.compile(r"([^\s:]+): ")


def error_body(status: int, code: str, message: str) -> bytes:
    """`code` is the contract's, `param` the field that it concerns, where it is one of the body's."""
    field = _FIELD.match(message) if code in _NAMES_A_FIELD else None
    error = {
        "message": message,
        "type": _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error"),
        "param": field[1] if field else None,
        "code": code,
    }
    return orjson.dumps({"error": error})
