"""The gRPC door: the Open Inference Protocol and Predict, on the same pipeline as the REST doors."""
