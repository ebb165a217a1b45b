"""Hold the rows of a collection: records on disk, vectors and metadata columns in memory.

In: checked records and deletions. Out: snapshots of segments for searches, and records by id or row number.
`sqlite_store` keeps the records in SQLite with a write-ahead log. `segments` keeps the vectors: begin there.
"""
