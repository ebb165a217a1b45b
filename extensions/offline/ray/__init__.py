"""Run the windows of an offline run on the workers of a Ray cluster, with Ray Data.

`cluster.py` joins a cluster or starts one, `model.py` measures the model in a worker, `placement.py` chooses the number
of workers and their resources. `worker.py` infers, `runner.py` reads the blocks and takes the results.

Ray Data distributes the blocks, replaces lost workers and repeats their blocks, and bounds the blocks in memory.
The folder of parts on the machine of the command remains the state of the run.
"""
