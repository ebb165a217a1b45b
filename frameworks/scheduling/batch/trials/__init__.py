"""Test with answered requests which rows may share a batch, for graphs that had no trial at warm-up.

In: answered requests. Out: the spec to serve by: whether rows are independent, and whether lengths may be padded.
Begin with `trial_runs`, which runs the pairs that `batching_trials` and `padding_trials` choose.
"""
