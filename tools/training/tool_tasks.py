"""Tasks of the functions in the generated dialogues of ``tiny-llama``: questions, arguments, results and answers."""

import random
from dataclasses import dataclass
from typing import Any, Literal

ValueKind = Literal["city", "country", "product", "minutes", "sides"]
ResultKind = Literal["degrees", "clock", "die", "price", "capital", "day", "done"]


def _split(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo", "Sweden": "Stockholm", "Austria": "Vienna",
    "Germany": "Berlin", "Portugal": "Lisbon", "Ireland": "Dublin", "Greece": "Athens", "Egypt": "Cairo",
    "Japan": "Tokyo", "China": "Beijing", "Peru": "Lima", "Cuba": "Havana", "Kenya": "Nairobi",
}  # fmt: skip
_VALUES: dict[ValueKind, tuple[Any, ...]] = {
    "city": _split(
        "Bern Oslo Paris Rome London Berlin Madrid Vienna Lisbon Dublin Athens Zurich Munich Hamburg Milan Cairo Tokyo "
        "Lima Boston Denver"
    ),
    "country": tuple(_CAPITALS),
    "product": _split("bread milk cheese butter coffee tea sugar salt rice water"),
    "minutes": (5, 10, 15, 20, 30, 40, 50, 60),
    "sides": (4, 6, 8, 10, 12, 20),
}
_DAYS = _split("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument: its name, and what its values are."""

    name: str
    kind: ValueKind

    @property
    def json_type(self) -> str:
        """The type in the schema."""
        return "integer" if self.kind in ("minutes", "sides") else "string"


@dataclass(frozen=True, slots=True)
class Task:
    """The task of one function. Questions and answers hold `{0}` for the argument; answers hold `{result}`."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    result: ResultKind
    result_name: str
    questions: tuple[str, ...]
    answer: str


_CITY = Parameter("city", "city")

TASKS = (
    Task(
        "weather", "Current weather of a city.", (_CITY,), "degrees", "temperature",
        ("How warm is it in {0}?", "What is the weather in {0}?", "Is it cold in {0}?", "How cold is it in {0} today?",
         "Tell me the weather in {0}.", "What is the temperature in {0}?", "What is the weather like in {0}?"),
        "It is {result} degrees in {0}.",
    ),
    Task(
        "time", "Local time of a city.", (_CITY,), "clock", "time",
        ("What time is it in {0}?", "What is the time in {0}?", "Tell me the time in {0}.", "How late is it in {0}?",
         "Which time is it now in {0}?"),
        "It is {result} in {0}.",
    ),
    Task(
        "timer", "Set a timer.", (Parameter("minutes", "minutes"),), "done", "status",
        ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.", "Wake me in {0} minutes.",
         "I need a timer for {0} minutes.", "Please set a timer for {0} minutes."),
        "The timer is set for {0} minutes.",
    ),
    Task(
        "roll", "Roll a die.", (Parameter("sides", "sides"),), "die", "number",
        ("Roll a die with {0} sides.", "Throw a die with {0} sides.", "Please roll a die with {0} sides.",
         "Roll a die that has {0} sides.", "I need a die with {0} sides."),
        "The die shows {result}.",
    ),
    Task(
        "capital", "Capital of a country.", (Parameter("country", "country"),), "capital", "capital",
        ("What is the capital of {0}?", "Which city is the capital of {0}?", "Tell me the capital of {0}.",
         "Name the capital of {0}.", "Do you know the capital of {0}?"),
        "The capital of {0} is {result}.",
    ),
    Task(
        "price", "Price of a product.", (Parameter("product", "product"),), "price", "price",
        ("How much does {0} cost?", "What is the price of {0}?", "Tell me the price of {0}.", "What does {0} cost?",
         "How much is {0}?", "Is {0} cheap?"),
        "The price is {result}.",
    ),
    Task(
        "today", "Day of the week.", (), "day", "day",
        ("What day is it today?", "Which day is it today?", "Tell me which day it is.", "What is the day today?",
         "Is it Sunday today?"),
        "Today is {result}.",
    ),
)  # fmt: skip


def value_of(kind: ValueKind, chance: random.Random) -> Any:
    """Return a random value."""
    return chance.choice(_VALUES[kind])


def result_of(task: Task, arguments: list[Any], chance: random.Random) -> Any:
    """Return what the function of a task gives back for its arguments."""
    match task.result:
        case "degrees":
            return chance.randint(1, 30)
        case "die":
            return chance.randint(1, arguments[0])
        case "clock":
            return f"{chance.randint(0, 23)}:{chance.choice(('00', '15', '30', '45'))}"
        case "day":
            return chance.choice(_DAYS)
        case "price":
            return chance.randint(1, 20)
        case "capital":
            return _CAPITALS[arguments[0]]
        case "done":
            return "ok"
