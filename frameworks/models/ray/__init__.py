"""Models whose engines are replicas of Ray Serve. `ray.py` starts versions with `frameworks/engine/ray`."""
