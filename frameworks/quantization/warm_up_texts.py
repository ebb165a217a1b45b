"""Texts of many lengths and kinds, for the comparison of a quantised text model with its original."""

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
