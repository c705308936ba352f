"""Stock ticks in Real-time Mode, with a batch a minute, as a table of one's own writes would be declared.

Between two batches the job stands still. With the shortest batches, 5 s, more than one write in a hundred meets that.
"""

from dataclasses import replace

from tablegate.examples.tables.stock_ticks import TABLE as TICKS
from tablegate.jobs.table import Mode

TABLE = replace(TICKS, mode=Mode.REALTIME, trigger_s=60)
