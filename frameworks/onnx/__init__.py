"""ONNX graphs, run by ONNX Runtime."""
