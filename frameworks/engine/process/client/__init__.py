"""The server's side of an engine process: start it, send requests, detect hangs and crashes, restart, retry.

In: requests and loads of one model. Out: results, and the counts of the process. Begin with `process_engine`.
`launch` and `running_process` own the process; `open_calls` has the requests in flight. The policies are pure:
`retries` (which requests run again), `poison_requests` (which are refused).
"""
