"""Send load to a running server and report what a client measures: `roundhouse bench`."""
