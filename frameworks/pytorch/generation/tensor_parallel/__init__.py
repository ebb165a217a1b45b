"""One decoder on several devices: each rank has a part of every layer. Begin with `loading.py`.

Rank 0 is the engine: it schedules, computes its part and samples. The other ranks are processes that it starts
(`followers.py`, `follower.py`). Each step goes to them as one message, and all ranks then compute it together.
Source: Shoeybi et al. 2019 (Megatron-LM): two sums over the ranks in a layer.
"""
