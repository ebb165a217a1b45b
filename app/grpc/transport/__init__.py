"""gRPC over HTTP/2, on the event loop: the frames of a stream in, a call of a handler out.

`server.py` listens and opens a call for each stream, `calls.py` is a call, `stream_call.py` one of many messages,
`framing.py` has messages and status.
"""
