"""Jobs: declarations of tables, and the PySpark runtime that keeps them."""
