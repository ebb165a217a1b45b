"""Images: decode files within bounds, and prepare their pixels as a model's files say."""
