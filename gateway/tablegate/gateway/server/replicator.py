"""The replicator process of a gateway: settings in, `tablegate.gateway.replication` does the rest."""

import logging
import sys
from pathlib import Path

from tablegate.gateway.cluster.gateways_topic import NameInUse
from tablegate.gateway.kafka.ends import KafkaEnds
from tablegate.gateway.kafka.log import LogUnavailable
from tablegate.gateway.replication.process import ReplicatorConfig, run_replicator
from tablegate.gateway.server.child import FAILED, STORE_OPENED, ChildConfig, send_event
from tablegate.gateway.server.worker_pipe import ReplicatorEnd
from tablegate.gateway.stores.base import StoreUnavailable

_logger = logging.getLogger("tablegate.gateway.server")


def replicator_main(config: ChildConfig) -> None:
    """Follow the changelogs until SIGTERM."""
    replicator_config = ReplicatorConfig(
        files=config.files,
        store=Path(config.store),
        store_url=config.store_url,
        bootstrap=config.bootstrap,
        tables_topic=config.tables_topic,
        kafka_options=config.kafka_options,
        membership=config.membership,
    )
    workers = ReplicatorEnd(config.pipe_fds)
    workers.answer(KafkaEnds(config.bootstrap, config.kafka_options).end_offsets)
    try:
        run_replicator(replicator_config, on_open=lambda: send_event(STORE_OPENED), notify=workers.publish)
    except (StoreUnavailable, LogUnavailable) as error:
        _logger.error("the replicator cannot go on", extra={"reason": str(error)})
        send_event(FAILED, reason=str(error))
        sys.exit(1)
    except NameInUse as error:
        _logger.error("the gateway ends", extra={"reason": str(error)})
        send_event(FAILED, reason=str(error), for_good=True)
        sys.exit(1)
