"""The Open Inference Protocol beside inference: metadata, configuration, statistics and the model repository."""
