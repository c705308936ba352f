"""Browsers that act often and have not passed a captcha."""

from tablegate.jobs import Join, Json, Latest, Mode, Source, Table, Text

TABLE = Table(
    name="suspicious_browsers",
    contract="examples/browsers/v1/browsers.proto",
    sides={
        "actions": Source("browser_actions", Json("browser STRING, action STRING, time TIMESTAMP")),
        "captchas": Latest(Source("captchas", Json("passed BOOLEAN"), key=Text("browser"), keyed=True), join=Join.LEFT),
    },
    key={"browser": "browser"},
    columns={"action_count": "IF(captchas.passed, 0, count(actions))"},
    having="action_count >= 5",
    mode=Mode.MICROBATCH,
    emit_interval_s=1,
)
