"""Serve the Open Inference Protocol and Predict over gRPC, on the same pipeline as HTTP."""
