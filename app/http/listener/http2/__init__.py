"""Connections of HTTP/2: bytes of a socket in; calls of ASGI and of gRPC out, one for each stream.

`first_bytes.py` chooses between HTTP/1.1 and HTTP/2, `connection.py` is a connection, `clocks.py` has its bounds,
`exchange.py` is a request as ASGI sees it. Begin with `connection.py`. gRPC's streams are in app/grpc/transport.
"""
