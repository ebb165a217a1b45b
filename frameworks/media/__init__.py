"""Audio and video: decode files within bounds by PyAV, the extra `media`."""
