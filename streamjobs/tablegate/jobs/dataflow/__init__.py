"""From a plan to streaming frames: everything that becomes a Spark expression. Starts nothing."""
