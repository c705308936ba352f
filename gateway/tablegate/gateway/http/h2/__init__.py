"""HTTP/2 for servers (RFC 9113, RFC 7541) without I/O: states and frames in, events and frames out.

Imports nothing but the standard library, and of that no sockets and no event loop: it can be used, and tested, alone.
`ServerConnection` is where to begin; `tablegate.gateway.http.h2_connection` drives it from asyncio.
"""
