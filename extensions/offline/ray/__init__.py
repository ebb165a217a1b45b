"""Run the windows of an offline run on the workers of a Ray cluster, with Ray Data.

| module | part |
|---|---|
| `cluster` | join a cluster, or start one on this machine for the run |
| `engine` | the model in a process of Ray; its measured memory |
| `model` | the worker that measures the model, and checks the command with it |
| `placement` | the resources of a worker and their number; pure |
| `blocks` | a window as one row of a Ray dataset; pure |
| `source` | read tasks on the machine of the command |
| `worker` | a worker of the pool: blocks of rows to blocks of results |
| `runner` | the dataset, and its results in the event loop of the run |

Ray Data distributes the blocks, replaces lost workers and repeats their blocks, and bounds the blocks in memory.
The folder of parts on the machine of the command remains the state of the run.
"""
