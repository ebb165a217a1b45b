"""Load models on devices, schedule their requests, and run them."""
