"""Run loaded models in processes of their own: a crash ends one model, not the server."""
