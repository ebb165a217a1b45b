"""Measure the server at its limits: overload, tenants, many connections, hostile requests, loads, roll-outs, soaks."""
