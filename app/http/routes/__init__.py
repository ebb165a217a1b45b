"""Routes that change or describe the server, and the document of all routes: FastAPI's. Begin with `application.py`.

They are imported for the first request that is no inference: `app/http/deferred.py`.
"""
