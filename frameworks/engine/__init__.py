"""Run loaded models: in this process, or in engine processes.

In: decoded requests. Out: outputs, or a stream of text. Begin with `contract`: Engine is the only class that the rest
of the server knows. `local` and `process` implement it; `texts`, `images` and `generating` prepare requests.
"""
