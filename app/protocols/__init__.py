"""Bytes to requests and responses to bytes: one package per protocol, and what they share."""
