"""Parts of all protocols: the contract of a codec, the route table, errors, and bodies of text requests.

Begin with `codec.py` (bytes to a request, an answer to bytes) and `routes.py` (path to codec). `fields/` validates the
fields that several protocols have, `json/` reads bodies without an object for each number.
"""
