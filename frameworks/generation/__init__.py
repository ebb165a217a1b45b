"""Text generation without torch: requests and responses, tokens to text, tool calls, speculation, the scheduler."""
