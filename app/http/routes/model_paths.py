"""Let the paths of FastAPI's routes have a model's name, as the tables of routes and permissions do."""

from starlette.convertors import Convertor, register_url_convertor

from frameworks.core.names import NAME_IN_PATH


class ModelNameConvertor(Convertor[str]):
    """Match `name` or `org/name`, whose slash may be `%2F` in the URL: Starlette matches decoded paths."""

    regex = NAME_IN_PATH

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("model", ModelNameConvertor())

NAME = "{name:model}"
"""A model's name in the path of a route; the handler gets it as `name`."""
