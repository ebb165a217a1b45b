"""Write the text of a sound in the formats of OpenAI's transcriptions: JSON, plain text, SubRip and WebVTT."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_MAX_PAUSE_S = 0.8
"""A longer pause between two words ends a segment."""
_MAX_SEGMENT_S = 10.0
_Part = Mapping[str, Any]


class Word(NamedTuple):
    """A word, with the seconds at which it begins and ends."""

    text: str
    start_s: float
    end_s: float


def words_of(prediction: _Part) -> list[Word]:
    """Return the words of a prediction with `return_timestamps: "word"`. A word without an end ends where it begins."""
    words = []
    for chunk in prediction.get("chunks", ()):
        start, end = chunk["timestamp"]
        start = start or 0.0
        words.append(Word(str(chunk["text"]).strip(), float(start), float(start if end is None else end)))
    return words


def segments_of(prediction: _Part) -> list[dict[str, Any]]:
    """Return the segments of a prediction: those of the model, or words up to the next pause."""
    found = prediction.get("segments")
    return list(found) if found is not None else _joined(words_of(prediction))


def _joined(words: Iterable[Word]) -> list[dict[str, Any]]:
    groups: list[list[Word]] = []
    for word in words:
        last = groups[-1] if groups else None
        is_next = last is not None and word.start_s - last[-1].end_s <= _MAX_PAUSE_S
        if last is not None and is_next and word.end_s - last[0].start_s <= _MAX_SEGMENT_S:
            last.append(word)
        else:
            groups.append([word])
    return [
        {
            "id": number,
            "seek": 0,
            "start": group[0].start_s,
            "end": group[-1].end_s,
            "text": " ".join(word.text for word in group),
            "tokens": [],
        }
        for number, group in enumerate(groups)
    ]


def subrip(segments: Sequence[_Part]) -> str:
    """Return the text of an .srt file."""
    parts = (
        f"{number}\n{_clock(each['start'], ',')} --> {_clock(each['end'], ',')}\n{_line(each['text'])}\n\n"
        for number, each in enumerate(segments, 1)
    )
    return "".join(parts)


def webvtt(segments: Sequence[_Part]) -> str:
    """Return the text of a .vtt file."""
    parts = (
        f"{_clock(each['start'], '.')} --> {_clock(each['end'], '.')}\n{_line(each['text'])}\n\n" for each in segments
    )
    return "WEBVTT\n\n" + "".join(parts)


def _clock(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and milliseconds."""
    milliseconds = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{milliseconds // 1000:02}{point}{milliseconds % 1000:03}"


def _line(text: str) -> str:
    """Return a text that ends no cue: without an arrow, and on one line."""
    return " ".join(text.split()).replace("-->", "->")
