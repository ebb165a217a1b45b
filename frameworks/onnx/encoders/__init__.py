"""Serve the graph of an encoder by the compiled layers of PyTorch. Begin with `choice.py`.

The onnx package is imported only when the weights of a graph are copied.
"""
