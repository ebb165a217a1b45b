"""Bodies of requests for a model: from a file, from images, or made for the inputs that it declares."""
