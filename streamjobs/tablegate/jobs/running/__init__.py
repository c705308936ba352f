"""Runs tables: the Spark application, the queries of each table, and the handover between generations.

The way from a declaration to its queries goes forward only, and each room knows only those before it:

    plan = make_plan(table, options)    # planning: contract, topics, schemas; needs no Spark
    frames = build(session, plan, …)    # dataflow: Spark expressions, checked; nothing runs yet
    queries = start(frames, plan)       # running: streaming queries

`running_table.py` takes these three steps, again for each new generation. Of the commands, `tablegate job run` calls
`runner.py`, `rebuild` and `seek` call `rebuild.py`, `check` calls `checks.py`, `audit` `audit.py` and `diff`
`kept_logic.py`; `list`, `drop-old` and `reset` call `operations.py`.
"""
