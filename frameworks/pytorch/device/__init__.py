"""The parts that models on a device share: its queue of copies and launches, pinned memory, and captured graphs.

Begin with `queue.py`.
"""
