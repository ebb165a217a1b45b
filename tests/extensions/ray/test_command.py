"""Why a deployment failed."""

from extensions.ray.command import explain

APPLICATION = "Failed to update the deployments ['model-m']."
TRACEBACK = """The deployment failed to start 3 times in a row. Error:
\x1b[36mray::ServeReplica.initialize()\x1b[39m
  File "replica.py", line 3521, in initialize
RuntimeError: Traceback (most recent call last):
  File "hosted.py", line 69, in load
    raise InvalidModel(version.reply.error.message)
"""
OWN = "frameworks.core.errors.InvalidModel: "


def test_explain_model_error_leaves_its_text() -> None:
    message = f"{TRACEBACK}{OWN}a/model.onnx: no such file or folder\n"
    assert explain(APPLICATION, {"Ingress": "", "model-m": message}) == "model-m: a/model.onnx: no such file or folder"


def test_explain_model_error_leaves_nothing_of_others() -> None:
    """Such as a replica on a node that has ended: Ray starts it again."""
    by_deployment = {
        "Ingress": f"{TRACEBACK}ray.exceptions.ActorDiedError: gone",
        "model-m": f"{TRACEBACK}{OWN}no file",
    }
    assert explain(APPLICATION, by_deployment) == "model-m: no file"


def test_explain_other_error_leaves_all() -> None:
    message = f"{TRACEBACK}OSError: broken\n"
    assert explain(APPLICATION, {"model-m": message}) == f"{APPLICATION}\nmodel-m: {message}"
