"""Learn from Serve which replicas of a deployment run.

Serve pickles this module by value into each process that has a handle, so its global names are copies there: the shared
state is in `extensions.ray.running_replicas`, which is imported by name.
"""

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class PublishingRouter(PowerOfTwoChoicesRequestRouter):
    """Publish the running replicas with their addresses. Calls of the handle are routed as Serve does by default."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Note the set that the controller has sent."""
        super().update_replicas(replicas)
        self._publish()

    def on_replica_actor_died(self, replica_id: Any) -> None:
        """Note the end of a replica that a call has found."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        from extensions.ray.handshake import Address
        from extensions.ray.running_replicas import running_replicas

        found = {}
        for replica in self.curr_replicas.values():
            address = Address.from_metadata(replica.replica_metadata)
            if address is not None:
                found[replica.replica_id.unique_id] = address
        deployment = self._deployment_id
        running_replicas(deployment.app_name, deployment.name).publish(found)
