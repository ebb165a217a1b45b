from typing import Any

from frameworks.tasks.types import TaskSpec


def check_parameters(spec: TaskSpec, given: Any, field: str = "parameters") -> dict[str, Any]:
    return dict(given or {})
