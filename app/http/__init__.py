"""HTTP: the ASGI application, the HTTP/1.1 protocol class, bodies, responses and event streams."""
