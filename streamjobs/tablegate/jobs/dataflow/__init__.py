"""From a plan to Spark DataFrames."""
