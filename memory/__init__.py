"""The bytes: sizes, buffers, budgets and caches. Imports nothing of ours."""
