"""Text generation without torch: types of requests and responses, tokens to text, tool calls."""
