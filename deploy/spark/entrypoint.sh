#!/usr/bin/env bash
# The entrypoint of the job's image. Spark on Kubernetes starts its pods with "driver …" and "executor", and says all else
# in their environment. Any other command is run as it is.
set -euo pipefail

case "${1:-}" in
  driver)
    shift
    exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
  executor)
    # SPARK_JAVA_OPT_0 and so on, in the order of their numbers.
    mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_\([0-9]\+\)=/\1\t/p' | sort -n | cut -f 2-)
    jars=$(python -c 'import pyspark; print(pyspark.__path__[0])')/jars
    exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
      -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$jars/*" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec "$@"
    ;;
esac
