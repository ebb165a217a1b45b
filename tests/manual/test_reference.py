"""The generated parts of the manual agree with the code."""

import re

import pytest
from pydantic import BaseModel

from app.config.loading import CacheSettings, LoggingSettings, ServerSettings
from frameworks.core.settings.entries import ModelsSettings, OnnxModelEntry, TorchModelEntry
from frameworks.core.settings.performance import PerformanceSettings, SchedulingSettings
from memory.settings import MemorySettings
from tests.manual.pages import PAGES
from tests.manual.reference import DOCS, PAGE_LIST, PARTS, field_docstrings, page_list, replaced

SETTINGS: tuple[type[BaseModel], ...] = (
    *(ServerSettings, ModelsSettings, OnnxModelEntry, TorchModelEntry, PerformanceSettings, SchedulingSettings),
    *(MemorySettings, CacheSettings, LoggingSettings),
)


@pytest.mark.parametrize("part", PARTS)
def test_generated_part_agrees_with_code(part: str) -> None:
    name, write = PARTS[part]
    page = (DOCS / name).read_text(encoding="utf-8")
    assert replaced(page, part, write()) == page, "run: python -m tests.manual.reference"


def test_web_page_lists_every_page_of_manual() -> None:
    assert PAGE_LIST.read_text(encoding="utf-8") == page_list(), "run: python -m tests.manual.reference"
    listed = re.findall(r'\["([\w-]+)", "', page_list())
    assert sorted(listed) == [page.stem for page in PAGES if page.parent == DOCS]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_every_setting_has_a_docstring(settings: type[BaseModel]) -> None:
    assert set(field_docstrings(settings)) == set(settings.model_fields)


def test_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks of errors"):
        replaced("text", "errors", "table")
