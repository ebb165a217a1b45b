"""The messages between the server and an engine process, their plain values, and tensors in shared memory.

In: requests, answers, specs and counts. Out: messages for a channel of `frameworks.core.channel`, which sends them.
Begin with `messages`, which defines them; `serialization` converts to plain values; `shared_tensors` places arrays.
"""
