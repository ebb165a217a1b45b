"""A replica: load versions of models, and answer every ingress that connects.

In: connections of ingresses. Out: answers, and reports on loaded versions. Begin with `replica`, the deployment class.
`listener` accepts connections, `clients` has their sessions. `hosted_versions` loads each version of one model once;
`hosted_models` loads those of a group by their first requests, and evicts them.
"""
