"""The replica's side of Ray Serve: load versions of models, and answer every ingress that connects.

In: connections of ingresses. Out: answers, and reports on loaded versions. Begin with `replica`, the deployment class.
`listener` accepts connections, `clients` has their sessions, `hosted_versions` loads each version once.
"""
