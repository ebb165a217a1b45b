"""Measure search, pipelines, `roundhouse run` and deployments on Ray."""
