"""Steps 1 (decode) and 5 (encode) of a request's way, one package or file per protocol."""
