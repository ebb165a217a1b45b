"""The ingress's side of Ray Serve: one engine over the running replicas of a deployment.

In: requests of one version. Out: results of the replica that `routing` chose. Begin with `group`.
`connections` follows the running replicas; `link` is a connection to one of them. `shared_group` and
`loaded_versions` do the same where several models share the replicas.
"""
