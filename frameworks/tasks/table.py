"""List the tasks that are served: their inputs and parameters, by transformers' names, without labels."""

from typing import Any

from frameworks.tasks.speaking import TEXT_TO_AUDIO
from frameworks.tasks.types import TaskParameter, TaskSpec

MAX_RESULTS = 1000
"""Most results of one input, and most labels or targets of one request."""
MAX_TOKENS = 1_000_000
"""Above the length of every model; a tokenizer's own limit is lower."""
MAX_PART_TOKENS = 4096
"""A search for an answer has a product of the tokens with themselves in memory."""
MAX_ANSWERS = 100
"""All answers of all parts of a context are compared."""
MAX_ANSWER_TOKENS = 512
MAX_TEMPLATE_CHARACTERS = 1000
"""A template is tokenized once for each label."""
MAX_PROMPT_VALUES = 4096
"""Numbers and lists of the points of all objects of an image."""
MAX_WINDOW_S = 60.0
"""The longest sound that one row reads: attention has the product of its frames with themselves in memory."""
MAX_DELIMITER_CHARACTERS = 100
"""A delimiter is repeated between all words."""

_FUNCTIONS = ("sigmoid", "softmax", "none")
_PADDING = ("do_not_pad", "longest", "max_length")


def _boolean(name: str, description: str, default: bool | None = None) -> TaskParameter:
    return TaskParameter(name, "boolean", default, description=description)


def _integer(name: str, description: str, default: int | None, minimum: int, maximum: int) -> TaskParameter:
    return TaskParameter(name, "integer", default, minimum, maximum, description=description)


def _number(name: str, description: str, default: float | None, minimum: float, maximum: float) -> TaskParameter:
    return TaskParameter(name, "number", default, minimum, maximum, description=description)


def _share(name: str, description: str, default: float) -> TaskParameter:
    return _number(name, description, default, 0.0, 1.0)


def _choice(name: str, description: str, choices: tuple[str, ...], default: str | None = None) -> TaskParameter:
    return TaskParameter(name, "string", default, choices=choices, description=description)


def _strings(name: str, description: str, default: Any = None, *, least: int = 0) -> TaskParameter:
    return TaskParameter(name, "strings", default, least, MAX_RESULTS, description=description)


def _numbers(name: str, description: str) -> TaskParameter:
    return TaskParameter(name, "numbers", None, 1, MAX_PROMPT_VALUES, description=description)


def _top_k(default: int | None, description: str = "Number of results, the most likely first.") -> TaskParameter:
    return _integer("top_k", description, default, 1, MAX_RESULTS)


def _function() -> TaskParameter:
    return _choice("function_to_apply", "Function from logits to scores; the model's own by default.", _FUNCTIONS)


def _candidate_labels() -> TaskParameter:
    return TaskParameter(
        "candidate_labels",
        "strings",
        minimum=1,
        maximum=MAX_RESULTS,
        description="Labels of which the model chooses.",
        required=True,
    )


def _template(default: str) -> TaskParameter:
    description = "Sentence that is compared with the input; {} is replaced by the label."
    return TaskParameter(
        "hypothesis_template", "template", default, maximum=MAX_TEMPLATE_CHARACTERS, description=description
    )


def _answer_limits() -> tuple[TaskParameter, ...]:
    return (
        _integer("top_k", "Number of answers, the most likely first.", 1, 1, MAX_ANSWERS),
        _integer("doc_stride", "Tokens that neighbouring parts of a long context share.", None, 0, MAX_PART_TOKENS),
        _integer("max_seq_len", "Tokens of a part of the context with its question.", None, 1, MAX_PART_TOKENS),
        _integer("max_answer_len", "Tokens of the longest answer.", 15, 1, MAX_ANSWER_TOKENS),
        _boolean("handle_impossible_answer", "Whether an empty answer may be returned.", False),
    )


_TEXT_TASKS = (
    TaskSpec(
        "text-classification",
        ("text",),
        (_top_k(None, "Number of labels, the most likely first."), _function()),
        required=("text",),
        members=("text_pair",),
        has_labels=True,
    ),
    TaskSpec(
        "token-classification",
        ("text",),
        (
            _choice(
                "aggregation_strategy",
                "How tokens become words and entities.",
                ("none", "simple", "first", "average", "max"),
                "none",
            ),
            _strings("ignore_labels", "Labels that are left out.", ["O"]),
            _integer("stride", "Tokens that neighbouring parts of a long text share.", None, 0, MAX_TOKENS),
            _boolean("is_split_into_words", "Whether the text is a list of words.", False),
            TaskParameter(
                "delimiter",
                "string",
                " ",
                maximum=MAX_DELIMITER_CHARACTERS,
                description="Text between two words of a list.",
            ),
        ),
        required=("text",),
        has_labels=True,
    ),
    TaskSpec(
        "question-answering",
        (),
        (
            *_answer_limits(),
            _integer("max_question_len", "Has no effect: a tokenizer.json cuts no question.", None, 1, MAX_TOKENS),
            _choice("padding", "Padding of the parts of a context.", _PADDING, "do_not_pad"),
            _boolean("align_to_words", "Whether answers begin and end with a word.", True),
        ),
        required=("question", "context"),
        members=("question", "context"),
    ),
    TaskSpec(
        "fill-mask",
        ("text",),
        (_top_k(5, "Number of tokens for each mask."), _strings("targets", "Words of which one is chosen.", least=1)),
        required=("text",),
    ),
    TaskSpec(
        "zero-shot-classification",
        ("text",),
        (
            _candidate_labels(),
            _template("This example is {}."),
            _boolean("multi_label", "Whether several labels may be true; scores are independent.", False),
        ),
        required=("text",),
    ),
    TaskSpec(
        "table-question-answering",
        (),
        (
            _choice("padding", "Padding of the table.", _PADDING, "longest"),
            _boolean("truncation", "Whether rows are left out of a table that is too long.", True),
            _boolean("sequential", "Whether a question may refer to the answer before it.", False),
        ),
        required=("table", "query"),
        members=("table", "query"),
    ),
    TaskSpec(
        "feature-extraction",
        ("text",),
        (_boolean("truncation", "Whether a text that is too long is cut."),),
        required=("text",),
    ),
)

_IMAGE_TASKS = (
    TaskSpec("image-classification", ("image",), (_top_k(5), _function()), required=("image",), has_labels=True),
    TaskSpec(
        "object-detection",
        ("image",),
        (_share("threshold", "Lowest score of an object.", 0.5),),
        required=("image",),
        has_labels=True,
    ),
    TaskSpec(
        "image-segmentation",
        ("image",),
        (
            _choice(
                "subtask",
                "Kind of segments; by default the first that the model can do: panoptic, instance, semantic.",
                ("semantic", "instance", "panoptic"),
            ),
            _share("threshold", "Lowest score of a segment.", 0.9),
            _share("mask_threshold", "Lowest score of a pixel of a mask.", 0.5),
            _share("overlap_mask_area_threshold", "Smallest share of a mask that no other one hides.", 0.5),
        ),
        required=("image",),
        has_labels=True,
    ),
    TaskSpec("depth-estimation", ("image",), required=("image",)),
    TaskSpec(
        "zero-shot-image-classification",
        ("image",),
        (_candidate_labels(), _template("This is a photo of {}.")),
        required=("image",),
    ),
    TaskSpec(
        "zero-shot-object-detection",
        ("image",),
        (
            _candidate_labels(),
            _share("threshold", "Lowest score of an object.", 0.1),
            _top_k(None, "Number of objects, the most likely first; all by default."),
        ),
        required=("image",),
    ),
    TaskSpec(
        "mask-generation",
        ("image",),
        (
            _integer("points_per_batch", "Points of the grid in one run of the model.", 64, 1, 1024),
            _integer("points_per_crop", "Points of a side of the grid.", 32, 1, 64),
            _integer("crops_n_layers", "Times that the image is cut into smaller crops.", 0, 0, 2),
            _share("crop_overlap_ratio", "Share of its length that a crop has in common with the next.", 512 / 1500),
            _integer("crop_n_points_downscale_factor", "Divisor of the points of each next layer.", 1, 1, 64),
            _share("pred_iou_thresh", "Lowest quality of a mask, as the model predicts it.", 0.88),
            _share("stability_score_thresh", "Lowest stability of a mask.", 0.95),
            _number("stability_score_offset", "Change of the threshold that measures stability.", 1.0, 0.0, 100.0),
            _number("mask_threshold", "Lowest logit of a pixel of a mask.", 0.0, -100.0, 100.0),
            _share("crops_nms_thresh", "Overlap above which the lesser of two masks is dropped.", 0.7),
            _boolean("output_rle_mask", "Whether masks are also returned as run lengths.", False),
            _boolean("output_bboxes_mask", "Whether the boxes of masks are returned.", False),
            _numbers("input_points", "Points [x, y] in pixels, a list of them for each object."),
            _numbers("input_labels", "Label of each point: 1 is in the object, 0 is not; all 1 by default."),
            _numbers("input_boxes", "Boxes [left, top, right, bottom] in pixels, one for each object."),
            _boolean("multimask_output", "Whether an object of points or a box has three masks, or one.", True),
        ),
        required=("image",),
    ),
    TaskSpec(
        "keypoint-matching",
        ("image",),
        (_share("threshold", "Lowest score of a match.", 0.0),),
        required=("image",),
        files_per_input=2,
    ),
    TaskSpec(
        "document-question-answering",
        ("image",),
        (
            *_answer_limits(),
            _choice("padding", "Padding of the parts of a document.", _PADDING, "do_not_pad"),
        ),
        required=("question", "word_boxes"),
        members=("question", "word_boxes"),
    ),
)

_SOUND_AND_VIDEO_TASKS = (
    TaskSpec("audio-classification", ("audio",), (_top_k(None), _function()), required=("audio",), has_labels=True),
    TaskSpec(
        "automatic-speech-recognition",
        ("audio",),
        (
            _choice(
                "return_timestamps", "Whether characters or words are returned with their times.", ("char", "word")
            ),
            _number(
                "chunk_length_s", "Seconds of a window of a long sound; one window by default.", None, 1, MAX_WINDOW_S
            ),
            _number(
                "stride_length_s",
                "Seconds that a window has in common with each neighbour; a sixth of a window by default.",
                None,
                0,
                MAX_WINDOW_S,
            ),
            _boolean("return_duration", "Whether the seconds of the sound are returned.", False),
        ),
        required=("audio",),
    ),
    TaskSpec(
        "zero-shot-audio-classification",
        ("audio",),
        (_candidate_labels(), _template("This is a sound of {}.")),
        required=("audio",),
    ),
    TaskSpec(
        "video-classification",
        ("video",),
        (
            _top_k(5),
            _integer("num_frames", "Frames that the model reads; its own number by default.", None, 1, 256),
            _integer("frame_sampling_rate", "Frames from one that is read to the next.", 1, 1, 64),
            _function(),
        ),
        required=("video",),
        has_labels=True,
    ),
)

_ALL = (*_TEXT_TASKS, *_IMAGE_TASKS, *_SOUND_AND_VIDEO_TASKS, TEXT_TO_AUDIO)
TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in _ALL}
"""By the name of the task in transformers."""
