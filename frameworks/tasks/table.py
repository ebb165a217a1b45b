from frameworks.tasks.types import TaskSpec

TASKS = {
    "token-classification": TaskSpec("token-classification", ("text",), required=("text",), has_labels=True),
    "object-detection": TaskSpec("object-detection", ("image",), required=("image",), has_labels=True),
    "fill-mask": TaskSpec("fill-mask", ("text",), required=("text",)),
    "zero-shot-classification": TaskSpec("zero-shot-classification", ("text",), required=("text",)),
    "depth-estimation": TaskSpec("depth-estimation", ("image",), required=("image",)),
    "image-segmentation": TaskSpec("image-segmentation", ("image",), required=("image",)),
}
