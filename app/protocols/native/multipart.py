"""The parts of a form of /infer, and their bounds."""

from app.protocols.native.fields import GENERATION_FIELDS, GENERATION_INPUTS
from app.protocols.native.form_generation import GENERATION_PARTS
from app.protocols.native.form_messages import IMAGES
from app.protocols.native.images import FIELD, FILE_OPTIONS
from app.protocols.shared.fields.images import MAX_IMAGES
from app.protocols.shared.fields.media import FIELDS, MAX_FILES
from app.protocols.shared.forms import FormRules

MAX_CONSTRAINT_BYTES = 64 * 1024
"""Of one option of generated text, such as a JSON schema."""
MAX_PROMPT_BYTES = 16 * 1024**2
"""Of `prompt` or `messages`. A prompt beyond the context is refused before it is tokenized."""

RULES = FormRules(
    dict.fromkeys(FIELDS, MAX_FILES) | {FIELD: MAX_IMAGES, IMAGES: MAX_IMAGES},
    FILE_OPTIONS | GENERATION_PARTS,
    FIELD,
    dict.fromkeys(GENERATION_FIELDS - FILE_OPTIONS, MAX_CONSTRAINT_BYTES)
    | dict.fromkeys(GENERATION_INPUTS, MAX_PROMPT_BYTES),
    dict.fromkeys((FIELD, IMAGES), "images"),
)
