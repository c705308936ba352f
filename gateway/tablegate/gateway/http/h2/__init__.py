"""HTTP/2 for servers (RFC 9113, RFC 7541) without I/O: states and frames in, events and frames out.

Imports nothing but the standard library, and of that no sockets and no event loop: it can be used, and tested, alone.
`tablegate.gateway.http.h2_connection` drives it from asyncio.

    connection = ServerConnection(body_bytes_max=1_000_000, new_stream=Stream)
    connection.receive_data(data)
    while connection.unread and (event := connection.next_event()) is not NEED_DATA:
        if isinstance(event, Stream):
            connection.send_response(event, header_block, body, trailer_block)
    connection.widen_windows()
    write(b"".join(connection.output))
    connection.output.clear()
"""
