"""Customers: prospect, account and enrichment of one id, joined."""

from tablegate.jobs import Json, Latest, Mode, RowOutput, Source, Table, Text

TABLE = Table(
    name="customers",
    contract="examples/customers/v1/customers.proto",
    # Each topic is a table: an id's newest record counts, and a null value deletes. Without all three, no customer.
    sides={
        "prospects": Latest(Source("tp_prospects", Json("name STRING"), key=Text("id"), keyed=True)),
        "accounts": Latest(Source("tp_accounts", Json("accountNumber STRING"), key=Text("id"), keyed=True)),
        "enrichments": Latest(Source("tp_enrichment_accounts", Json("status STRING"), key=Text("id"), keyed=True)),
    },
    key={"id": "CAST(id AS BIGINT)"},
    columns={
        "name": "prospects.name",
        "account_number": "accounts.accountNumber",
        "status": "enrichments.status",
    },
    outputs=(RowOutput("tp_clients", key=Text("id"), value=Json("id, name, account_number, status")),),
    mode=Mode.MICROBATCH,
)
