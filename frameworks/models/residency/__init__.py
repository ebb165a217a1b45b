"""Models in memory: a request for a version in, a loaded version with a reference out.

`residency.py` loads each version once for all requests that wait, and evicts idle ones. `ledger.py` counts the memory
of each device, `placement.py` chooses one, `loader.py` loads, in a process by `processes.py`. Begin with
`residency.py`.
"""
