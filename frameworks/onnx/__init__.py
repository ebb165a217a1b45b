"""ONNX graphs, run by ONNX Runtime."""

import os

# Before its import: it starts a thread that keeps usage data in the home folder and sends them to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
