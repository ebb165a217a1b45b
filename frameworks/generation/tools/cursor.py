"""The position in a text that arrives in pieces."""

from frameworks.generation.tools.json_scanner import skip_space


class Cursor:
    """`text`: the pieces that are not read yet, from `position`. `raw`: what was read of a text that may be no call."""

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.raw: list[str] | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether all text has been read."""
        return self.position == len(self.text)

    @property
    def character(self) -> str:
        """The next character. The cursor is not at the end."""
        return self.text[self.position]

    def push(self, text: str) -> None:
        """Add a piece."""
        self.text = self.text[self.position :] + text
        self.position = 0

    def take_rest(self) -> str:
        """Return the text that is not read, and remove it."""
        rest = self.text[self.position :]
        self.text, self.position = "", 0
        return rest

    def peek(self, count: int) -> str:
        """Return up to `count` next characters."""
        return self.text[self.position : self.position + count]

    def move(self, count: int) -> None:
        """Read `count` characters."""
        self.move_to(self.position + count)

    def move_to(self, position: int) -> None:
        """Read the text up to `position`."""
        if self.raw is not None:
            self.raw.append(self.text[self.position : position])
        self.position = position

    def skip_space(self) -> bool:
        """Read white space; return whether something follows it."""
        self.move_to(skip_space(self.text, self.position))
        return not self.is_at_end

    def take_before(self, mark: str) -> tuple[str, bool]:
        """Read the text before a mark; return it, and whether the mark follows."""
        at = self.text.find(mark, self.position)
        part = self.text[self.position : at if at >= 0 else None]
        self.move(len(part))
        return part, at >= 0
