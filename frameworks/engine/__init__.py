"""Run loaded models: in this process, in engine processes, or in replicas of Ray Serve.

In: decoded requests. Out: outputs, or a stream of text. Begin with `contract`: Engine is the only class that the rest
of the server knows. `local`, `process` and `ray` implement it; `texts`, `images` and `generation` prepare requests.
"""
