"""What a model is asked for: pre- and postprocessing of transformers' pipelines around batches. Begin with `types.py`.

In: texts and files with parameters. Out: the predictions of the task, as JSON values.
"""
