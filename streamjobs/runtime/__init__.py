"""Declaration to streaming query: `run_jobs` keeps a declared table."""

from streamjobs.runtime.errors import JobError
from streamjobs.runtime.options import Options
from streamjobs.runtime.runner import run_jobs

__all__ = ["JobError", "Options", "run_jobs"]
