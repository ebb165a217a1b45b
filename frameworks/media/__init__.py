"""Audio and video: decode files within bounds, and encode sounds, by PyAV, the extra `media`."""
