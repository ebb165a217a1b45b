"""The native REST protocol: /infer and its path forms."""
