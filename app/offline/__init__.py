"""Run a model over files of rows: read windows, infer, write parts, merge them. Needs pyarrow, the extra `data`."""
