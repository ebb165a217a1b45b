"""Step scheduling for language models: dispatcher, worker thread and token feed.

In: sequences. Out: tokens, in the feed of each request. Begin with `dispatcher`, then `worker`, which runs the steps.
"""
