"""Messages between processes of the server: frames of msgpack over a Unix socket, arrays and descriptors with them.

In: messages of a union of msgspec structs. Out: the same messages in the other process, in order. Begin with `channel`.
"""
