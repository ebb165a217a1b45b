"""Describe the tasks of transformers' pipelines, and check their requests. Begin with `types.py`.

In: texts and files with parameters. Out: the predictions of the task, as JSON values.
"""
