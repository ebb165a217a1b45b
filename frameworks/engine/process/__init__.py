"""Run loaded models in processes of their own: a crash ends one model, not the server.

In: requests of the pipeline. Out: their results, or an error that names why the process ended. `client` is the server's
side: begin with `client/process_engine.py`. `host` is the side of the engine process: begin with `host/event_loop.py`.
`wire` has the messages between both, and the shared memory. `link` is the contract of a connection, which engines on
other machines implement too.
"""
