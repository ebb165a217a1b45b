"""Run models in replicas of Ray Serve: one deployment for each model or group, and an engine over its running replicas.

Discovery, placement, health checks, rolling updates and autoscaling are those of Serve. Requests travel over one TCP
connection from each ingress to each replica, with the messages and frames of `frameworks.engine.process`. A call of a
Serve handle takes 4 ms of CPU and a frame 20 µs, so no request is a call.

| module | part |
|---|---|
| `deployment` | the Serve deployment of a model: replicas, resources, autoscaling |
| `replica`, `hosted`, `clients`, `gate` | the replica: its versions, its clients, its port |
| `running`, `router` | which replicas run, as Serve's router learns it |
| `link`, `clock`, `handshake` | a connection to a replica |
| `group`, `connections` | the Engine over a changing set of replicas |
| `sharing`, `residents`, `watching` | the same where models share the replicas: which of them has loaded what |

`frameworks.models.ray` starts versions with it; `frameworks.models.ray_replica` has the models of a shared replica.
Only `deployment`, `router` and `replica` import ray.
"""
