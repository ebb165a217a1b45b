"""ONNX graphs on CUDA devices: options of the providers, captured graphs, TensorRT engines. Begin with `settings.py`.

Imported only for a model on CUDA.
"""
