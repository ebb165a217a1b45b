"""The ingress: the whole server, with one engine for each version over the running replicas of its deployment.

In: requests. Out: results of the replica that `routing` chose. Begin with `ingress`, which starts the server and hands
it the `starter` of versions. `group` is their engine, `connections` follows the running replicas, `link` is a
connection to one of them. `shared_group` and `loaded_versions` do the same where several models share the replicas.
"""
