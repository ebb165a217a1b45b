"""Change the versions that serve a model: new files are found, loaded and given traffic; adapters are added."""
