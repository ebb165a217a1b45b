"""A model and its versions: where the files are, which version a request gets, and the state of each.

`slot.py` is a model by name with its traffic, and `version.py` one version with its engine. `downloads.py` fetches the
files of an address. `version_folders.py` finds versions in folders. Begin with `slot.py`.
"""
