"""Declarations of two example tables with one thing otherwise: windows of Kafka's own time, and captchas of users."""

from tablegate.jobs.table import Global, Join, Json, Mode, Source, Table, Text, Window

CONTRACT = "variants.proto"
ACTIONS = Source("browser_actions", Json("browser STRING, action STRING, time TIMESTAMP"))

ARRIVAL_COUNTS = Table(
    name="arrival_counts",
    contract=CONTRACT,
    source=ACTIONS,
    key={"browser": "browser", "window_start": "window.start"},
    columns={"window_end": "window.end", "action_count": "count(*)"},
    window=Window(size_s=5, hop_s=2, late_s=10),
    mode=Mode.MICROBATCH,
)
USER_BROWSERS = Table(
    name="user_browsers",
    contract=CONTRACT,
    sides={
        "actions": ACTIONS,
        "captchas": Global(
            Source("user_captchas", Json("passed BOOLEAN"), key=Text("user"), keyed=True),
            key="user",
            on="concat('user-', right(browser, 1))",
            join=Join.LEFT,
        ),
    },
    key={"browser": "browser"},
    columns={"action_count": "count_if(NOT coalesce(captchas.passed, false))"},
    having="action_count >= 5",
    mode=Mode.MICROBATCH,
)
TABLES = (ARRIVAL_COUNTS, USER_BROWSERS)
