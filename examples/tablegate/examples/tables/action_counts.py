"""Actions of each browser in windows of 5 s, one each 2 s."""

from tablegate.jobs import Json, Mode, Source, Table, Window

TABLE = Table(
    name="action_counts",
    contract="examples/actions/v1/actions.proto",
    # Without event_time, windows would be of the time at which Kafka got the record.
    source=Source("browser_actions", Json("browser STRING, action STRING, time TIMESTAMP"), event_time="time"),
    key={"browser": "browser", "window_start": "window.start"},
    columns={"window_end": "window.end", "action_count": "count(*)"},
    window=Window(size_s=5, hop_s=2, late_s=10),
    mode=Mode.MICROBATCH,
    emit_interval_s=1,
)
