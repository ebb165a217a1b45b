"""Shared by the parts: servers, senders of requests, models, texts, cores, rounds and the rows of the table."""
