"""Read speech: the pipeline of transformers, which also tells the duration of a sound."""

from typing import Any

from transformers.pipelines.automatic_speech_recognition import AutomaticSpeechRecognitionPipeline


class SpeechRecognition(AutomaticSpeechRecognitionPipeline):  # type: ignore[misc]  # transformers has no types
    """Read samples, or an object of samples with their `duration` in seconds, which the prediction then has too."""

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        """Return the prediction. The pipeline collects further members of an input from each of its windows."""
        prediction = super().postprocess(model_outputs, **options)
        if "duration" in prediction:
            prediction["duration"] = prediction["duration"][0]
        return prediction
