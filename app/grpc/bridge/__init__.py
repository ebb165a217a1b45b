"""gRPC on the wire: grpcio's threaded server before an event loop on which all handlers run."""
