"""Fields that several protocols have: JSON in, options of a request out.

`policy.py` says which fields are ignored. Begin with `generation.py`.
"""
