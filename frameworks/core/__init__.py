"""Errors, addresses, names, devices and settings, for every part of frameworks. Imports no other part."""
