"""Texts for the comparison of a quantized model with its original."""

from collections.abc import Callable

from frameworks.types import Batch, TokenBatch

_TEXTS_PER_BATCH = 8
_PARAGRAPH = (
    "A roundhouse is a building where locomotives are kept and mended, laid out around a turntable. An engine rolls on "
    "to the turntable, is turned to the track it belongs on, and rolls off again; while one is being turned the others "
    "wait. Most were built between 1840 and 1950, and when diesel engines, which run as well backwards as forwards, "
    "replaced steam there was little left to turn. Some are museums today, some are breweries, and many are gone."
)

WARM_UP_TEXTS: tuple[str, ...] = (
    "steam",
    "7",
    "Hello!",
    "3.14159 26535 89793 23846",
    "2024-02-29T23:59:60Z",
    "https://example.com/search?q=turntable&page=2#results",
    "ERROR 503: upstream timed out (110) while reading response header",
    "How do I reset my password?",
    "The delivery was late and the box was damaged, I want my money back.",
    "Great food, friendly staff, will definitely come again!!!",
    "what is the capital of france",
    "The mitochondrion is the powerhouse of the cell.",
    "NOT FOR SALE IN THE UNITED STATES OF AMERICA",
    "Not yet, but soon.",
    "blue suede shoes size 9",
    "Der Zug nach München fährt heute von Gleis 12 ab.",
    "Le chat dort sur le canapé pendant que la pluie tombe.",
    "El rápido zorro marrón salta sobre el perro perezoso.",
    "東京駅で電車を降りて、北口へ歩いてください。",
    "Поезд прибывает на первый путь.",
    "हर सुबह छह बजे पहली ट्रेन चलती है।",
    "🚂🚃🚃 all aboard 🎉",
    "def add(a, b):\n    return a + b",
    "SELECT name, COUNT(*) FROM trains WHERE speed > 120 GROUP BY name ORDER BY 2 DESC;",
    '{"id": 42, "tags": ["a", "b"], "price": 9.99, "active": true}',
    "for (int i = 0; i < n; ++i) { sum += values[i] * weights[i]; }",
    "Revenue rose 12.4 % to $3.2 billion in the third quarter, beating analysts' estimates of $3.05 billion.",
    "The patient, a 54-year-old man, presented with chest pain radiating to the left arm and shortness of breath.",
    "The party of the first part shall indemnify and hold harmless the party of the second part from any claims.",
    "Preheat the oven to 180 degrees, mix flour, sugar and butter, and bake for twenty-five minutes until golden.",
    _PARAGRAPH,
    f"{_PARAGRAPH} The word is also used for the cabin on the after part of a ship's quarterdeck. {_PARAGRAPH}",
)


HELD_OUT_TEXT = """\
The ferry left the harbour a little after six, when the wind had already turned and the gulls were quiet. Marta stood \
at the rail with a paper bag of plums and counted the lamps along the shore. Her brother had promised to wait at the \
second pier, but he had promised the same thing in spring, and then she had carried both suitcases up the hill alone.

In the small kitchen of the mill they keep a list of everything that is borrowed. Two ladders went to the school, one \
barrel of nails to the chapel, and a brass scale to a man who repairs clocks. Nothing on the list has a date. When the \
miller is asked how long a thing may stay away, he answers that a thing comes home when it is missed.

To check a pump, close the upper valve first and wait until the needle rests. Then turn the wheel by a quarter and \
listen. A steady tone means that the seal is sound; a rattle means that air has entered, and the line has to be filled \
again from the lower tank. Write the pressure before and after into the book, with the hour and your name.

Prices of wool fell by three percent in the first week of the month and rose again by almost as much in the second. \
Traders in the north explained it by the late shearing, those in the south by the strike of the drivers. Both may be \
right. The farmers, who were not asked, sold what they had and bought seed.

def longest(words):
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best

The function returns the first of several words that are equally long, and an empty string for an empty list. It looks \
at each word once, so its time grows with the number of words and not with their order.

What do you call a river that runs only at night? The children of the valley say that it is a road, because the carts \
go to the market before dawn. Their grandmother says that it is sleep. The teacher wrote both answers on the board, \
drew a line between them and asked the class which of the two could drown a horse.
"""


def text_batches(tokenize: Callable[..., list[list[int]]]) -> list[Batch]:
    """Return the warm-up texts in batches of similar lengths, as a server runs them. `tokenize`: of a tokenizer."""
    token_ids = sorted(tokenize([*WARM_UP_TEXTS], truncate=True), key=len)
    starts = range(0, len(token_ids), _TEXTS_PER_BATCH)
    return [TokenBatch(token_ids[start : start + _TEXTS_PER_BATCH]) for start in starts]
