"""Dynamic int8 copies of ONNX graphs. The onnx package is imported only when a copy is made."""
