"""Train the embedded models, and write their files below ``app/embedded``: ``python -m tools.training.train_...``.

``train_digits.py`` and ``train_shapes.py`` write a classifier each; ``shape_images.py`` draws the images of the second.
``train_sounds.py`` writes a classifier of the sounds that ``sounds.py`` makes.
``train_names.py`` writes a finder of names, taught by ``name_sentences.py`` and begun by ``name_vocabulary.py``.
``train_tiny_llama.py`` writes a language model; ``train_tiny_llama_tools.py`` trains it further, to call functions.
Their texts come from ``prose.py``, ``dialogues.py`` and ``tool_dialogues.py``.
``train_tiny_vision.py`` writes a language model that sees images of ``shape_images.py``. ``tiny_vision_tower.py``
trains its tower, and ``tiny_vision_talks.py`` makes conversations.
"""
