"""Files of Whisper that name what the model does not have are refused at load."""

from pathlib import Path
from typing import Any

import pytest

from frameworks.core.errors import InvalidModel
from tests.frameworks.pytorch.generation.generating import load_generating
from tests.support.models.tasks.whisper import VOCABULARY_SIZE, save_whisper


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"no_timestamps_token_id": None}, "no_timestamps_token_id"),
        ({"no_timestamps_token_id": VOCABULARY_SIZE}, "token ids below"),
        ({"lang_to_id": {"<|en|>": VOCABULARY_SIZE}}, "token ids below"),
        ({"lang_to_id": [1, 2]}, "lang_to_id"),
        ({"task_to_id": {"transcribe": "a"}}, "token ids below"),
        ({"prev_sot_token_id": -1}, "token ids below"),
        ({"alignment_heads": [[0, 9]]}, "alignment_heads"),
        ({"alignment_heads": [[2, 0]]}, "alignment_heads"),
        ({"alignment_heads": [0, 1]}, "alignment_heads"),
        ({"language": "klingon"}, "language"),
        ({"task": "sing"}, "task"),
        ({"no_speech_threshold": 0.6}, "no_speech_threshold"),
        ({"logprob_threshold": -1.0, "num_beams": 3}, "num_beams"),
        ({"forced_decoder_ids": [[2, 258]]}, "forced_decoder_ids"),
    ],
)
def test_file_that_names_too_much_is_refused(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    folder = save_whisper(tmp_path / "m", generation=changes)
    with pytest.raises(InvalidModel, match=field):
        load_generating(folder)
