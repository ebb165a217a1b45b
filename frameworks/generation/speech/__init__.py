"""Speech that a generating model reads: windows of a sound, and the segments of its text."""
