"""Implement version 2 of the Open Inference Protocol, with Triton's extensions, over REST; app/grpc adds gRPC."""
