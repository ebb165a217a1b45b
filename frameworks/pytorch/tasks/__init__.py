"""Models of tasks: transformers' pipelines, with our queue and batches between their steps.

In: a folder whose class serves a task. Out: instances that run prepared inputs. Begin with `loading.py`.
"""
