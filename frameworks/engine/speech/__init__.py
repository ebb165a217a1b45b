"""Requests for the texts of sounds: their windows are sequences of a generating model."""
