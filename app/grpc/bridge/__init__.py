"""Connect grpcio's threaded server to the event loop on which all handlers run."""
