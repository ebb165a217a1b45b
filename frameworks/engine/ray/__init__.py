"""Run models in replicas of Ray Serve: one deployment for each model or group, and an engine over its replicas.

In: requests of an ingress. Out: results of a replica. Begin with `deployment` (replicas, resources, autoscaling), then
`ingress` (the engine over running replicas) and `replica` (the versions of one replica, and its clients).
Discovery, placement, health checks and updates are Serve's. Requests travel over one TCP connection from each ingress
to each replica, as frames of `frameworks.engine.process.wire`: a frame takes 20 µs of CPU, a call of a Serve handle
4 ms. `frameworks.models.ray.ray` starts versions with it. Only
`cluster_connection`, `deployment`, `router` and `replica.replica` import ray.
"""
