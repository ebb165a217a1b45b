"""Rows of files: Parquet, CSV, JSON Lines, and folders of images."""
