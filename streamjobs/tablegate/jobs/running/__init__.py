"""Declaration to streaming query: `run_jobs` keeps a declared table."""

from tablegate.jobs.errors import JobError
from tablegate.jobs.planning.options import Options
from tablegate.jobs.running.runner import run_jobs

__all__ = ["JobError", "Options", "run_jobs"]
