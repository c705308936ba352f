"""`tablegate diff`: what a changed contract means for a table that runs, and for clients compiled before."""
