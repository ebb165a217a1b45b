"""The gRPC door: the Open Inference Protocol and Predict, on the same journey as the REST doors."""
