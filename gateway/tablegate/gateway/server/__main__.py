"""Where a process of a gateway begins: `python -P -m tablegate.gateway.server ROLE`, its settings on stdin as JSON."""

import sys

from tablegate.gateway.server.child import SNAPSHOTS, WORKER, ChildConfig, die_with_parent


def main(role: str) -> None:
    """Be a worker, the replicator, or who writes snapshot files, until SIGTERM."""
    config = ChildConfig.from_json(sys.stdin.readline())
    die_with_parent(config.parent)
    # What a role needs is imported here: a worker has no Kafka client, the replicator no gRPC.
    from tablegate.gateway.server.logs import set_up_logging

    set_up_logging(config.name, config.log_path)
    if role == WORKER:
        from tablegate.gateway.server.worker import worker_main

        worker_main(config)
    elif role == SNAPSHOTS:
        from tablegate.gateway.server.snapshots import snapshots_main

        snapshots_main(config)
    else:
        from tablegate.gateway.server.replicator import replicator_main

        replicator_main(config)


if __name__ == "__main__":
    main(sys.argv[1])
