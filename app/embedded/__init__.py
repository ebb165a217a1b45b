"""Embedded models, prepared below ``./models`` by ``python -m app.embedded``.

    minilm       all-MiniLM-L6-v2, minilm-onnx: as a graph    copy_minilm.py, export_minilm.py
    digits       a small ONNX classifier with a ZipMap        copy_digits.py
    shapes       a small ONNX classifier of images            copy_shapes.py
    tiny-llama   a very small language model                  copy_tiny_llama.py
    tiny-vision  a very small language model that sees        copy_tiny_vision.py
    names        a small PyTorch finder of names in texts     copy_names.py
    sounds       a small PyTorch classifier of sounds         copy_sounds.py
All but minilm are files of this package, made by ``tools/training``. The server imports none of these modules.
"""
