"""Folders of models that are made once and read by many tests."""

import os

# Before transformers is imported by whoever is first: nothing in these tests may reach for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FolderMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> FolderMaker:
    """`made_once(save, **options)`: the folder that `save(folder, **options)` writes. To read, not to change."""
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
    """As `made_once`, but a copy of one's own, to change."""

    def make(save: Callable[..., Any], **options: Any) -> Path:
        folder = tmp_path / f"copy_{len(list(tmp_path.iterdir()))}"
        shutil.copytree(made_once(save, **options), folder)
        return folder

    return make
