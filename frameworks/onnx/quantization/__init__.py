"""Dynamic int8 copies of ONNX graphs. The onnx package is imported when one has to be made, never before."""
