"""Bounded thread pools for work off the event loop: tokenize texts, decode and resize images.

In: functions of one request. Out: their results. Begin with `engine_threads`, which all engines of a process share.
"""
