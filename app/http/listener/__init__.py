"""Connections of HTTP/1.1 and HTTP/2: bytes of a socket in, an ASGI call out.

`acceptor.py` accepts, `protocol.py` is a connection, `parsing.py` reads heads, `body_receiver.py` receives large bodies
into shared memory, `clocks.py` ends slow clients, `tls.py` has the certificates. Begin with `protocol.py`.
"""
