"""Client of Tablegate gateways, over the code that protoc generates from a contract.

Here is what works with threads; `tablegate.client.aio` has the same for asyncio.
"""

from tablegate.client.channels import open_channel, open_direct_channel
from tablegate.client.events import CatchingUp, Current, Delete, Disconnected, Event, Key, Reset, Upsert
from tablegate.client.failures import ResumeTokenRefused, SubscribeError
from tablegate.client.fields import ContractMismatch, SourceRecord, at_least_source
from tablegate.client.streams import LiveTable, Subscription, subscribe
from tablegate.client.tokens import TokenFile, TokenMemory, TokenStore

__all__ = [
    "CatchingUp",
    "ContractMismatch",
    "Current",
    "Delete",
    "Disconnected",
    "Event",
    "Key",
    "LiveTable",
    "Reset",
    "ResumeTokenRefused",
    "SourceRecord",
    "SubscribeError",
    "Subscription",
    "TokenFile",
    "TokenMemory",
    "TokenStore",
    "Upsert",
    "at_least_source",
    "open_channel",
    "open_direct_channel",
    "subscribe",
]
