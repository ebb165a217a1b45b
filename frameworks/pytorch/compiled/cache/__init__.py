"""Keep compiled machine code in files between processes."""
