"""Make the sentences of the ``names`` model: words of ``name_words.txt`` in templates of ``name_templates.txt``.

One word of seven in each list of names is held out, with the templates of a section of their own. All randomness is of
the generator that the caller passes.
"""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

ZONES = Path("/usr/share/zoneinfo")
Words = Mapping[str, Sequence[str]]
Span = tuple[int, int, str]
"""First and last character (exclusive) of a name, and its kind: PER, ORG or LOC."""

_SLOT = re.compile(r"\{(\w+)\}")
_NAMES = ("first_names", "last_names", "places", "organisations", "prefixes")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A text and the names in it, in order."""

    text: str
    spans: tuple[Span, ...]


def read_sections(path: Path, separator: str) -> dict[str, tuple[str, ...]]:
    """Return the sections of a file: name → entries, which ``separator`` ends."""
    found: dict[str, tuple[str, ...]] = {}
    for part in re.split(r"^\[", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("]\n")
        found[name] = tuple(entry for entry in body.replace("\n", separator).split(separator) if entry.strip())
    return found


def read_words() -> dict[str, tuple[str, ...]]:
    """Return the lists of words, and among the places those of the system's time zones, if any."""
    words = read_sections(Path(__file__).with_name("name_words.txt"), "|")
    if (ZONES / "iso3166.tab").is_file():
        rows = [line.split("\t") for line in (ZONES / "iso3166.tab").read_text(encoding="utf-8").splitlines()]
        countries = [row[1].partition(" (")[0] for row in rows if len(row) == 2 and len(row[0]) == 2]
        rows = [line.split("\t") for line in (ZONES / "zone1970.tab").read_text(encoding="utf-8").splitlines()]
        cities = [row[2].split("/")[-1].replace("_", " ") for row in rows if len(row) > 2 and row[2].count("/") == 1]
        extra = [name for name in countries + cities if "&" not in name]
        words["places"] = tuple(dict.fromkeys((*words["places"], *extra)))
    return words


def split_words(words: Words, held_out: bool) -> dict[str, tuple[str, ...]]:
    """Return the lists with the names for training, or with those that are held out."""
    return {
        name: tuple(w for w in each if (zlib.crc32(w.encode()) % 7 == 0) == held_out) if name in _NAMES else tuple(each)
        for name, each in words.items()
    }


class Writer:
    """Write sentences with ``words``. ``common``: lowercase words for places where any word may be."""

    def __init__(self, words: Words, common: Sequence[str], random: Random, start: str = "sentence") -> None:
        self._words = words
        self._common = common
        self._random = random
        self._start = start
        self._noise = 0.06 if start == "sentence" else 0.0
        self._templates = read_sections(Path(__file__).with_name("name_templates.txt"), "\n")

    def sentence(self) -> Sentence:
        """Return a sentence of a random template, now and then with other words or in capitals."""
        pieces = list(self._expanded(self._random.choice(self._templates[self._start])))
        spans, text = [], ""
        for piece, kind in pieces:
            if kind:
                spans.append((len(text), len(text) + len(piece), kind))
            text += self._varied(piece) if not kind else piece
        if text[0].islower():
            text = text[0].upper() + text[1:]
        if self._random.random() < 0.02:
            text = text.upper() if len(text.upper()) == len(text) else text
        if self._random.random() < 0.1:
            text = text.rstrip(".")
        return Sentence(text, tuple(spans))

    def _expanded(self, template: str) -> Iterator[tuple[str, str]]:
        """Yield the pieces of a template: a text, and the kind of name that it is, or nothing."""
        at = 0
        for slot in _SLOT.finditer(template):
            yield template[at : slot.start()], ""
            at = slot.end()
            name = slot[1]
            if name in ("PER", "ORG", "LOC"):
                article, text = "", getattr(self, f"_{name.lower()}")()
                if text.startswith("the "):
                    article, text = "the ", text[4:]
                yield article, ""
                yield text, name
            elif name in self._templates:
                yield from self._expanded(self._random.choice(self._templates[name]))
            else:
                yield self._filled(name), ""
        yield template[at:], ""

    def _filled(self, slot: str) -> str:
        random = self._random
        match slot:
            case "a" | "A":
                return slot
            case "YEAR":
                return str(random.randint(1850, 2030))
            case "NUMBER":
                return random.choice((str(random.randint(2, 900)), f"{random.uniform(0, 20):.1f}"))
            case "MONEY":
                sign, unit = random.choice("$€£"), random.choice((" million", " billion", "", " a year"))
                return f"{sign}{random.randint(1, 999)}{unit}"
            case "SCORE":
                return f"{random.randint(0, 6)}-{random.randint(0, 6)}"
            case "NOUN":
                return random.choice(self._words["nouns"] if random.random() < 0.7 else self._common)
            case "ADJ":
                return random.choice(self._words["adjectives"] if random.random() < 0.7 else self._common)
            case "WORD" | "Word":
                word = random.choice(self._common)
                return word if slot == "WORD" else word.capitalize()
            case "OPTIONAL":
                return random.choice((" again", " today", " soon", " too", ""))
        return random.choice(self._words[f"{slot.lower()}s"])

    def _varied(self, text: str) -> str:
        """Replace a few words of the templates by any others, so that no verb decides alone."""
        return re.sub(
            r"\b[a-z]{4,}\b",
            lambda m: self._random.choice(self._common) if self._random.random() < self._noise else m[0],
            text,
        )

    def _per(self) -> str:
        random, words = self._random, self._words
        first, last = random.choice(words["first_names"]), random.choice(words["last_names"])
        if random.random() < 0.08:
            last = self._invented()
        if random.random() < 0.05:
            first = self._invented()
        shape = random.random()
        if shape < 0.5:
            return f"{first} {last}"
        if shape < 0.64:
            return first
        if shape < 0.8:
            return last
        initial, other = random.choice("ABCDEFGHJKLMNPRSTW"), random.choice(words["first_names"])
        particle = random.choice(("van", "van der", "de", "von", "da", "del", "bin", "al"))
        forms = (
            f"{first} {initial}. {last}",
            f"{initial}. {last}",
            f"{first} {other} {last}",
            f"{first} {particle} {last}",
        )
        double = f"{first} {last}-{random.choice(words['last_names'])}"
        more = (f"{first}-{other} {last}", double, f"{initial}. {first[0]}. {last}")
        return random.choice(forms + more)

    def _loc(self) -> str:
        random, words = self._random, self._words
        shape = random.random()
        if shape < 0.8:
            return random.choice(words["places"])
        if shape < 0.88:
            base = random.choice((self._invented(), random.choice(words["last_names"])))
            return base + random.choice(words["endings"]) if base.isalpha() else base
        if shape < 0.94:
            return f"{random.choice(words['place_starts'])} {self._base()}"
        return f"{self._base()} {random.choice(words['place_ends'])}"

    def _base(self) -> str:
        words = self._words
        return self._random.choice((self._random.choice(words["last_names"]), self._invented()))

    def _org(self) -> str:
        random, words = self._random, self._words
        shape = random.random()
        if shape < 0.42:
            return random.choice(words["organisations"])
        place, last = random.choice(words["places"]).removeprefix("the "), random.choice(words["last_names"])
        prefix, business = random.choice(words["prefixes"]), random.choice(words["businesses"])
        if shape < 0.56:
            return f"{random.choice((prefix, prefix, last, place, self._invented()))} {business}"
        if shape < 0.62:
            return "".join(random.choice("ABCDEFGHIKLMNOPRSTUVW") for _ in range(random.randint(2, 5)))
        if shape < 0.7:
            return prefix + random.choice(
                ("Soft", "Tech", "Works", "Net", "Bank", "Data", "soft", "tech", "ware", "Labs", " AI")
            )
        if shape < 0.73:
            return self._invented()
        things = random.choice(("Justice", "Defence", "Health", "Education", "Energy", "Foreign Affairs", "Finance"))
        return random.choice(
            (
                f"University of {place}",
                f"{place} University",
                f"Bank of {place}",
                f"{place} {random.choice(('United', 'City', 'FC', 'Police', 'Council', 'Museum', 'Times', 'Opera'))}",
                f"FC {place}",
                f"{last} & {random.choice(words['last_names'])}",
                f"{last} and Sons",
                f"{last} {random.choice(('Brothers', 'Group', 'Foundation', 'University', 'Inc.'))}",
                f"Ministry of {things}",
                f"Department of {things}",
                f"{random.choice(('National', 'Royal', 'European', 'American', 'International'))} {business}",
                f"{prefix} {random.choice(words['prefixes'])} {business}",
                f"Institute of {random.choice(('Technology', 'Physics', 'Art', 'Advanced Studies'))}",
            )
        )

    def _invented(self) -> str:
        return "".join(self._random.choices(self._words["syllables"], k=self._random.randint(2, 3))).capitalize()
