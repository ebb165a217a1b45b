"""Authenticate requests: keys, scopes and tenants. Nothing here reads a body."""
