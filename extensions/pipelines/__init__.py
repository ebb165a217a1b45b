"""Pipelines: graphs of models and steps, checked at start and served like models."""

from app.extension import Extension

EXTENSION = Extension()
