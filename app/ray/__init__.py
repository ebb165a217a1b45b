"""Deploy the server on a Ray cluster: an ingress with the whole server but its models, and a deployment for each model
or group of models.

`serve run app.ray:application config=config.toml` builds the same application as `roundhouse deploy config.toml`.
"""

from app.ray.application import application

__all__ = ["application"]
