"""Connections of HTTP/2: bytes of a socket in; calls of ASGI and of gRPC out, one for each stream.

A connection begins as one of HTTP/1.1 (parsing.py). `connection.py` is one of HTTP/2, `clocks.py` has its bounds,
`exchange.py` is a request as ASGI sees it. Begin with `connection.py`. gRPC's streams are in app/grpc/transport.
"""
