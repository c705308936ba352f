"""From a declaration to a plan: contract, topics and schemas are settled before Spark starts. Needs no Spark."""
