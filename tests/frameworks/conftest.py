"""Fixtures for folders of models that many tests share."""

import os

# Set before the first import of transformers: no test may contact a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FolderMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> FolderMaker:
    """`made_once(save, **options)` returns the folder that `save(folder, **options)` writes; do not change it."""
    made: dict[str, Path] = {}

    def make(save: Callable[..., Any], **options: Any) -> Path:
        key = f"{save.__module__}.{save.__name__}{sorted(options.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp(save.__name__)
            save(made[key], **options)
        return made[key]

    return make


@pytest.fixture
def copied(made_once: FolderMaker, tmp_path: Path) -> FolderMaker:
    """As `made_once`, but returns a copy that the test may change."""

    def make(save: Callable[..., Any], **options: Any) -> Path:
        folder = tmp_path / f"copy_{len(list(tmp_path.iterdir()))}"
        shutil.copytree(made_once(save, **options), folder)
        return folder

    return make
