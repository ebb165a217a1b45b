"""HTTP: the ASGI application, the listeners of HTTP/1.1 and HTTP/2, bodies, responses and event streams."""
