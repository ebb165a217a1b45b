"""/v1/responses: OpenAI's newer route of conversations, over the requests of /v1/chat/completions."""
