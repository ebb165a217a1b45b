"""The wire format between the server and an engine process: frames of msgpack messages, and shared memory.

In: requests, answers, specs and tensors. Out: bytes on a Unix socket, and references into shared memory.
Begin with `messages`, which defines them; `channel` sends and receives; `serialization` converts to plain values.
"""
