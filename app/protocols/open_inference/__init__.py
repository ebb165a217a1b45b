"""The Open Inference Protocol, version 2 (KServe's, as Triton extends it): over REST here, over gRPC in app/grpc."""
