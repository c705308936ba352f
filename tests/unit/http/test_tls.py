"""TLS: its files, and clients over it."""

import asyncio
import base64
import logging
import os
import socket
import ssl
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from tablegate.gateway.http.listener import VERIFIED_ANEW_S, Limits
from tablegate.gateway.http.tls import TlsError, TlsFiles, WatchedTls
from tablegate.gateway.http.transport import EMPTY_RECORDS_MAX, RECORDS_AT_ONCE
from tests.kit.http.certificates import VALID, Authority, Pair
from tests.kit.http.h2 import OPENING, call
from tests.kit.http.http1 import BIG, WAIT_S, Client, until
from tests.kit.http.listening import GET, LATER, PREFACE, SETTINGS, Served, frame, served


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def files(authority: Authority) -> TlsFiles:
    return files_of(authority.issue())


def files_of(pair: Pair, client_ca: Path | None = None) -> TlsFiles:
    return TlsFiles(pair.certificate, pair.key, client_ca)


def client_context(authority: Authority, *protocols: str, own: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if protocols:
        context.set_alpn_protocols(protocols)
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    return context


async def connect(it: Served, context: ssl.SSLContext) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", it.listener.port, ssl=context)
    client = Client(reader, writer)
    it.clients.append(client)
    return client


async def get(client: Client) -> tuple[int, bytes]:
    await client.send(GET)
    return await client.answer()


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("h2",), ("h2", "http/1.1"), ("h3", "http/1.1"), ("h3",)])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_chooses_the_protocol(
    authority: Authority, files: TlsFiles, protocols: tuple[str, ...], version: ssl.TLSVersion
) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            context = client_context(authority, *protocols)
            context.maximum_version = version
            client = await connect(it, context)
            agreed = client.writer.get_extra_info("ssl_object").selected_alpn_protocol()
            assert agreed == ("h2" if "h2" in protocols else "http/1.1" if "http/1.1" in protocols else None)
            if agreed == "h2":
                await client.send(PREFACE)
                assert (await frame(client))[0] == SETTINGS
            else:
                assert await get(client) == (200, b"")

    asyncio.run(run())


def test_http2_without_alpn(authority: Authority, files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await connect(it, client_context(authority))
            await client.send(PREFACE)
            assert (await frame(client))[0] == SETTINGS

    asyncio.run(run())


def test_much_data_both_ways(authority: Authority, files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await connect(it, client_context(authority))
            it.app.body_bytes_max = len(BIG)
            await client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(BIG) + BIG)
            assert await client.answer() == (200, BIG)
            await client.send(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n" * 10)
            for _ in range(10):
                assert await client.answer() == (200, BIG)

    asyncio.run(run())


def test_client_that_does_not_read_makes_the_app_wait(authority: Authority, files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await connect(it, client_context(authority))
            await client.send(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n" * 100)
            assert await client.answer() == (200, BIG)
            assert len(it.app.seen) < 50

    asyncio.run(run())


def test_long_body_is_refused_while_it_comes(authority: Authority, files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await connect(it, client_context(authority))
            await client.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % (10 * len(BIG)))
            await client.send(BIG)
            assert await client.answer() == (413, b"too large")
            assert await client.rest() == b""

    asyncio.run(run())


def greeted(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[ssl.SSLSession | None, bool | None]:
    """Return the session of a connection that is answered, and whether it is the one it came with."""
    raw = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(raw, server_hostname="localhost", session=session) as client:
        client.sendall(GET)
        assert client.recv(1_000).startswith(b"HTTP/1.1 200")  # behind the ticket
        return client.session, client.session_reused


@pytest.mark.parametrize("shows_certificate", [False, True])
def test_session_is_resumed(authority: Authority, shows_certificate: bool) -> None:
    async def run() -> None:
        async with served(tls=files_of(authority.issue(), authority.certificate if shows_certificate else None)) as it:
            context = client_context(authority, own=authority.issue("client"))
            session, _ = await asyncio.to_thread(greeted, it.listener.port, context, None)
            _, reused = await asyncio.to_thread(greeted, it.listener.port, context, session)
            assert reused

    asyncio.run(run())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_is_resumed_once_the_list_is_over(
    authority: Authority, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    """Who resumes one is not verified again."""
    now_s = time.time()
    client_ca = authority.certificate.with_name("clients.pem")
    client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke())
    context = client_context(authority, own=authority.issue("client"))
    context.maximum_version = version

    async def run() -> None:
        nonlocal now_s
        async with served(tls=files_of(authority.issue(), client_ca), wall_clock=lambda: now_s) as it:
            session = None
            for reused in (False, True, False):
                session, got = await asyncio.to_thread(greeted, it.listener.port, context, session)
                assert got is reused
                if reused:
                    assert not caplog.records
                    now_s += 2 * VALID.total_seconds()
                it.listener._timer.cancel()
                it.listener._tick()

    asyncio.run(run())
    assert [record.message for record in caplog.records] == [
        f'a list of revoked certificates in client CA "{client_ca}" is over, so no client of its CA gets in; replace it'
    ]


def test_a_clock_that_was_ahead_lets_no_session_outlive_the_list(authority: Authority) -> None:
    now_s = time.time()
    ahead_s = 2 * VALID.total_seconds()
    client_ca = authority.certificate.with_name("clients.pem")
    client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke())
    context = client_context(authority, own=authority.issue("client"))

    async def run() -> None:
        nonlocal now_s
        async with served(tls=files_of(authority.issue(), client_ca), wall_clock=lambda: now_s) as it:
            session, is_resumed = None, True
            for passed_s in (0.0, ahead_s, -ahead_s, ahead_s):
                now_s += passed_s
                it.listener._timer.cancel()
                it.listener._tick()
                session, is_resumed = await asyncio.to_thread(greeted, it.listener.port, context, session)
            assert not is_resumed

    asyncio.run(run())


@pytest.mark.parametrize("how", ["other authority", "other host", "old version", "weak cipher"])
def test_clients_that_do_not_agree(
    authority: Authority, files: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    context = client_context(Authority(tmp_path, "other") if how == "other authority" else authority)
    if how == "old version":
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.set_ciphers("ALL:@SECLEVEL=0")
    if how == "weak cipher":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers("AES128-SHA")

    async def run() -> None:
        async with served(tls=files) as it:
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(
                    "127.0.0.1",
                    it.listener.port,
                    ssl=context,
                    server_hostname="elsewhere" if how == "other host" else "localhost",
                )
            assert await get(await connect(it, client_context(authority))) == (200, b"")
            await it.accepted(1)

    asyncio.run(run())
    failures = [record for record in caplog.records if record.message == "TLS handshake failed"]
    assert len(failures) == 1
    assert failures[0].__dict__["peer"].startswith("127.0.0.1:")
    assert failures[0].__dict__["reason"]
    assert failures[0].exc_info is None


def test_client_certificates(authority: Authority, tmp_path: Path) -> None:
    clients = Authority(tmp_path, "clients")
    files = files_of(authority.issue(), clients.certificate)

    async def run() -> None:
        async with served(tls=files) as it:
            good = client_context(authority, own=clients.issue("client"))
            assert await get(await connect(it, good)) == (200, b"")
            # The client learns the reason, and not just that the connection ended.
            assert await alert(it, authority, None) == "TLSV13_ALERT_CERTIFICATE_REQUIRED"
            assert await alert(it, authority, authority.issue("foreign")) == "TLSV1_ALERT_UNKNOWN_CA"
            assert await alert(it, authority, clients.issue("old", expired=True)) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"
            assert await get(await connect(it, good)) == (200, b"")

    asyncio.run(run())


async def alert(it: Served, authority: Authority, own: Pair | None) -> str:
    """Return why a client that shows this certificate is refused."""
    with pytest.raises(ssl.SSLError) as caught:
        await get(await connect(it, client_context(authority, own=own)))
    return caught.value.reason


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_revoked_clients_are_out_and_the_others_come_again(authority: Authority, protocol: str) -> None:
    now_s = time.time()

    async def run() -> None:
        nonlocal now_s
        client_ca = authority.certificate.with_name("clients.pem")
        client_ca.write_bytes(authority.certificate.read_bytes())
        good, bad = authority.issue("good"), authority.issue("bad")
        files = files_of(authority.issue(), client_ca)
        async with served(tls=files, wall_clock=lambda: now_s) as it:
            before = [await connect(it, client_context(authority, protocol, own=own)) for own in (good, bad)]
            for client in before:
                client.writer.write(OPENING + call(1, b"/later") if protocol == "h2" else LATER)
            await until(lambda: len(it.app.seen) == 2)
            client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke(bad))
            it.listener._timer.cancel()
            it.listener._tick()
            assert await alert(it, authority, bad) == "SSLV3_ALERT_CERTIFICATE_REVOKED"
            assert await get(await connect(it, client_context(authority, own=good))) == (200, b"")
            it.clients.pop().close()
            await it.accepted(2)  # those who came before have a minute, for answers on their way
            now_s += VERIFIED_ANEW_S
            it.listener._timer.cancel()
            it.listener._tick()
            await it.accepted(0)

    asyncio.run(run())


def test_streams_do_not_come_again_all_at_once(authority: Authority) -> None:
    now_s = time.time()

    async def run() -> None:
        nonlocal now_s
        client_ca = authority.certificate.with_name("clients.pem")
        client_ca.write_bytes(authority.certificate.read_bytes())
        context = client_context(authority, own=authority.issue("client"))
        async with served(tls=files_of(authority.issue(), client_ca), wall_clock=lambda: now_s) as it:
            for _ in range(4):
                await (await connect(it, context)).send(LATER)
            await until(lambda: len(it.app.seen) == 4)
            client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke())
            for seconds, left in ((0, 4), (VERIFIED_ANEW_S * 3 / 4, 2), (VERIFIED_ANEW_S / 4, 0)):
                now_s += seconds
                it.listener._timer.cancel()
                it.listener._tick()
                await it.accepted(left)

    asyncio.run(run())


def test_who_is_revoked_in_the_handshake_is_out_as_well(authority: Authority) -> None:
    now_s = time.time()

    async def run() -> None:
        nonlocal now_s
        client_ca = authority.certificate.with_name("clients.pem")
        client_ca.write_bytes(authority.certificate.read_bytes())
        bad = authority.issue("bad")
        async with served(tls=files_of(authority.issue(), client_ca), wall_clock=lambda: now_s) as it:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority, own=bad).wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await it.connect()
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            await client.send(outgoing.read())
            incoming.write(await client.reader.read(65_536))
            client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke(bad))
            it.listener._timer.cancel()
            it.listener._tick()
            tls.do_handshake()
            tls.write(GET)
            await client.send(outgoing.read())
            await until(lambda: len(it.app.seen) == 1)
            now_s += VERIFIED_ANEW_S
            it.listener._timer.cancel()
            it.listener._tick()
            await it.accepted(0)

    asyncio.run(run())


def test_a_list_of_revoked_clients_that_is_over_lets_nobody_in(authority: Authority) -> None:
    async def run() -> None:
        client_ca = authority.certificate.with_name("clients.pem")
        client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke(expired=True))
        async with served(tls=files_of(authority.issue(), client_ca)) as it:
            assert await alert(it, authority, authority.issue("client")) == "SSLV3_ALERT_CERTIFICATE_EXPIRED"

    asyncio.run(run())


def test_clients_of_a_revoked_authority_are_out(authority: Authority) -> None:
    below = authority.below("below")
    client = below.issue("client")
    client.certificate.write_bytes(client.certificate.read_bytes() + below.certificate.read_bytes())

    async def run() -> None:
        client_ca = authority.certificate.with_name("clients.pem")
        client_ca.write_bytes(authority.certificate.read_bytes() + below.revoke() + authority.revoke())
        async with served(tls=files_of(authority.issue(), client_ca)) as it:
            good = client_context(authority, own=client)
            assert await get(await connect(it, good)) == (200, b"")
            revoked = authority.revoke(Pair(below.certificate, client.key))
            client_ca.write_bytes(authority.certificate.read_bytes() + below.revoke() + revoked)
            it.listener._timer.cancel()
            it.listener._tick()
            assert await alert(it, authority, client) == "SSLV3_ALERT_CERTIFICATE_REVOKED"

    asyncio.run(run())


def test_a_list_that_comes_while_files_are_read_is_noticed(authority: Authority) -> None:
    client_ca = authority.certificate.with_name("clients.pem")
    client_ca.write_bytes(authority.certificate.read_bytes())

    class Replaced(TlsFiles):
        def load(self) -> ssl.SSLContext:
            context = super().load()
            if client_ca.read_bytes() == authority.certificate.read_bytes():
                client_ca.write_bytes(authority.certificate.read_bytes() + authority.revoke())
            return context

    pair = authority.issue()
    assert WatchedTls(Replaced(pair.certificate, pair.key, client_ca)).reload_if_changed()


def test_a_file_that_is_half_written_lets_no_revoked_client_in(authority: Authority) -> None:
    client_ca = authority.certificate.with_name("clients.pem")
    whole = authority.certificate.read_bytes() + authority.revoke()
    client_ca.write_bytes(whole)
    watched = WatchedTls(files_of(authority.issue(), client_ca))
    context = watched.context
    client_ca.write_bytes(authority.certificate.read_bytes())
    assert not watched.reload_if_changed()
    assert watched.context is context
    client_ca.write_bytes(whole)
    assert not watched.reload_if_changed()
    client_ca.write_bytes(authority.certificate.read_bytes())
    assert not watched.reload_if_changed()
    assert watched.reload_if_changed()  # it stays so: somebody means it
    assert watched.context.verify_flags & ssl.VERIFY_CRL_CHECK_LEAF == 0


def test_a_list_of_what_else_was_revoked_is_refused(authority: Authority) -> None:
    """It would count in place of the whole list, and who is in that would get in."""
    client_ca = authority.certificate.with_name("clients.pem")
    whole, delta = authority.revoke(authority.issue("client")), authority.revoke(delta=True)
    client_ca.write_bytes(authority.certificate.read_bytes() + whole + delta)
    with pytest.raises(TlsError, match="delta CRL"):
        files_of(authority.issue(), client_ca).load()


def test_a_list_that_is_no_text_is_refused(authority: Authority) -> None:
    client_ca = authority.certificate.with_name("clients.pem")
    lines = b"".join(authority.revoke().splitlines()[1:-1])
    client_ca.write_bytes(authority.certificate.read_bytes() + base64.b64decode(lines) + b"\0")
    with pytest.raises(TlsError, match="convert certificates and their CRL to PEM"):
        files_of(authority.issue(), client_ca).load()


def test_a_renewed_certificate_sends_nobody_away(authority: Authority) -> None:
    files = files_of(authority.issue(), authority.certificate)
    watched = WatchedTls(files)
    authority.issue()
    authority.certificate.write_bytes(authority.certificate.read_bytes())
    assert not watched.reload_if_changed()
    authority.certificate.write_bytes(authority.certificate.read_bytes() + authority.revoke())
    assert watched.reload_if_changed()


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
def test_a_connection_ends_with_its_certificate(authority: Authority, protocol: str) -> None:
    end_s = time.time() + VALID.total_seconds()
    now_s = end_s - 60

    async def run() -> None:
        nonlocal now_s
        files = files_of(authority.issue(), authority.certificate)
        async with served(tls=files, wall_clock=lambda: now_s) as it:
            client = await connect(it, client_context(authority, protocol, own=authority.issue("client")))
            if protocol == "h2":
                client.writer.write(OPENING + call(1, b"/later"))
            else:
                client.writer.write(LATER)
            await until(lambda: len(it.app.seen) == 1)
            it.listener._timer.cancel()
            it.listener._tick()
            await it.accepted(1)
            now_s = end_s + 60
            it.listener._timer.cancel()
            it.listener._tick()
            await it.accepted(0)
            assert it.app.gone.is_set()

    asyncio.run(run())


def test_failed_handshakes_are_logged_sparingly(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            for _ in range(50):
                client = await it.connect()
                await client.send(b"\x16\x03\x01\x00\x05nonsense")
                await client.rest()
                client.close()
            await it.accepted(0)

    asyncio.run(run())
    assert 1 <= caplog.text.count("TLS handshake failed") < 50


def test_handshake_that_is_not_done(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served(tls=files, limits=Limits(detection_s=10)) as it:
            client = await it.connect()
            await client.send(b"\x16\x03\x01\x02\x00\x01")
            await it.accepted(1)
            it.tick(1_000)
            it.tick(1_009)
            await asyncio.sleep(0)
            await it.accepted(1)
            it.tick(1_010)
            await it.accepted(0)

    asyncio.run(run())


@pytest.mark.parametrize("beginning", [b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"nonsense but text\r\n"])
def test_plaintext_is_told_to_use_tls(files: TlsFiles, beginning: bytes) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await it.connect()
            await client.send(beginning)
            assert await client.answer() == (400, b"this port speaks TLS; use https\n")
            assert await client.rest() == b""
            client.close()
            await it.accepted(0)

    asyncio.run(run())


def test_plaintext_http2_is_told_to_use_tls(files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await it.connect()
            await client.send(PREFACE)
            # In HTTP/1.1: gRPC's clients would take SETTINGS for a good connection, and come again at once.
            assert await client.answer() == (400, b"this port speaks TLS; use https\n")
            assert await client.rest() == b""

    asyncio.run(run())


def test_other_bytes_are_closed(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await it.connect()
            await client.send(b"\0\1\2")
            assert await client.rest() == b""
            await it.accepted(0)

    asyncio.run(run())
    assert "TLS handshake failed" in caplog.text


def _new_keys(secret: bytes, count: int, message: bytes) -> bytes:
    """Return records by which a client takes new keys, again and again, and one of data after them (RFC 8446, 4.6.3).

    `secret` is that of its traffic, with AES-256-GCM and SHA-384.
    """

    def expand(secret: bytes, label: bytes, size: int) -> bytes:
        info = size.to_bytes(2, "big") + bytes((6 + len(label),)) + b"tls13 " + label + b"\0"
        return HKDFExpand(SHA384(), size, info).derive(secret)

    records = b""
    for plain in (*[b"\x18\x00\x00\x01\x00\x16"] * count, message + b"\x17"):
        header = b"\x17\x03\x03" + (len(plain) + 16).to_bytes(2, "big")
        key, nonce = expand(secret, b"key", 32), expand(secret, b"iv", 12)  # of the first record with a key
        records += header + AESGCM(key).encrypt(nonce, plain, header)
        secret = expand(secret, b"traffic upd", 48)
    return records


@pytest.mark.parametrize(
    ("count", "is_served"), [(EMPTY_RECORDS_MAX, True), (EMPTY_RECORDS_MAX + 2 * RECORDS_AT_ONCE, False)]
)
def test_new_keys_without_end(
    authority: Authority, files: TlsFiles, tmp_path: Path, count: int, is_served: bool
) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            context = client_context(authority, "http/1.1")
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.keylog_filename = str(tmp_path / "keys")
            client = await connect(it, context)
            await it.accepted(1)
            assert client.writer.get_extra_info("cipher")[0] == "TLS_AES_256_GCM_SHA384"
            secrets = dict(line.split(" ")[::2] for line in (tmp_path / "keys").read_text().splitlines()[1:])
            raw = client.writer.get_extra_info("socket").fileno()
            os.write(raw, _new_keys(bytes.fromhex(secrets["CLIENT_TRAFFIC_SECRET_0"]), count, GET))
            if is_served:
                assert await client.answer() == (200, b"")
            else:
                await it.accepted(0)
                assert not it.app.seen

    asyncio.run(run())


def test_many_small_records_are_served(authority: Authority, files: TlsFiles) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            client = await connect(it, client_context(authority, "http/1.1"))
            request = b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2_000
            for at in range(len(request)):
                client.writer.write(request[at : at + 1])
            assert await client.answer() == (200, b"x" * 2_000)

    asyncio.run(run())


def test_bytes_that_are_not_tls_end_an_open_connection(
    authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with served(tls=files) as it:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await it.connect()
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await client.send(outgoing.read())
                    incoming.write(await client.reader.read(65_536))
            tls.write(GET)
            await client.send(outgoing.read() + b"nonsense" * 10)
            await client.rest()
            client.close()
            await it.accepted(0)
            assert len(it.app.seen) == 1

    asyncio.run(run())
    assert not caplog.records


def test_cut_anywhere(authority: Authority, files: TlsFiles) -> None:
    """Records come in pieces as small as a byte."""

    async def run() -> None:
        async with served(tls=files) as it:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = client_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
            client = await it.connect()
            for step in (tls.do_handshake, lambda: tls.write(GET), lambda: tls.read(1_000)):
                while True:
                    try:
                        answer = step()
                        break
                    except ssl.SSLWantReadError:
                        for byte in outgoing.read():
                            await client.send(bytes((byte,)))
                        incoming.write(await client.reader.read(1))
            assert isinstance(answer, bytes)
            assert answer.startswith(b"HTTP/1.1 200 OK")

    asyncio.run(run())


def test_files_are_loaded_again(authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    async def serial(client: Client) -> object:
        assert await get(client) == (200, b"")
        return client.writer.get_extra_info("peercert")["serialNumber"]

    async def run() -> None:
        async with served(tls=files) as it:
            first = await connect(it, client_context(authority))
            before = await serial(first)
            authority.issue()
            watched = it.listener._tls
            assert watched is not None
            watched.reload_if_changed()
            second = await connect(it, client_context(authority))
            assert await serial(second) != before
            assert await serial(first) == before

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.text.count("TLS files were changed") == 1


def test_broken_files_leave_those_before(
    authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedTls(files)
    context = watched.context
    files.key.write_text("nonsense")
    for _ in range(5):
        watched.reload_if_changed()
        assert watched.context is context
    assert caplog.text.count("cannot be used") == 1
    os.unlink(files.certificate)
    for _ in range(5):
        watched.reload_if_changed()
        assert watched.context is context
    assert caplog.text.count("cannot be used") == 2
    authority.issue()
    watched.reload_if_changed()
    assert watched.context is not context


def test_files_may_be_replaced_one_after_the_other(
    authority: Authority, files: TlsFiles, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedTls(files)
    context = watched.context
    new = authority.issue("new")
    os.replace(new.certificate, files.certificate)
    watched.reload_if_changed()  # between the two
    assert watched.context is context
    os.replace(new.key, files.key)
    watched.reload_if_changed()
    assert watched.context is not context
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_expired_files_are_not_taken(authority: Authority, files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    watched = WatchedTls(files)
    context = watched.context
    authority.issue(expired=True)
    watched.reload_if_changed()
    watched.reload_if_changed()
    assert watched.context is context
    assert "expired at" in caplog.text


def test_a_certificate_that_is_not_valid_yet_is_taken_when_it_is(authority: Authority, files: TlsFiles) -> None:
    watched = WatchedTls(files)
    context = watched.context
    authority.issue(begins_in=timedelta(seconds=1))
    ends_s = time.monotonic() + WAIT_S
    while watched.context is context:
        watched.reload_if_changed()
        assert time.monotonic() < ends_s
        time.sleep(0.1)


def test_files_that_are_wrong_again_are_told_again(files: TlsFiles, caplog: pytest.LogCaptureFixture) -> None:
    watched = WatchedTls(files)
    for count in (1, 2):
        os.rename(files.key, files.key.with_suffix(".away"))
        for _ in range(3):
            watched.reload_if_changed()
        assert caplog.text.count("cannot be used") == count
        os.rename(files.key.with_suffix(".away"), files.key)
        watched.reload_if_changed()


def spoil(authority: Authority, files: TlsFiles, how: str) -> TlsFiles:
    ca = files.certificate.with_name("clients.pem")
    match how:
        case "no certificate":
            os.unlink(files.certificate)
        case "no key":
            os.unlink(files.key)
        case "certificate is no PEM":
            files.certificate.write_bytes(b"\x30\x82\xff")
        case "certificate is damaged":
            files.certificate.write_bytes(files.certificate.read_bytes().replace(b"M", b"N"))
        case "key is no PEM":
            files.key.write_bytes(b"\x30\x82\xff")
        case "key is damaged":
            files.key.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        case "key is encrypted":
            files.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n")
        case "another key":
            os.replace(authority.issue("other").key, files.key)
        case "expired":
            return files_of(authority.issue(expired=True))
        case "no client CA":
            return TlsFiles(files.certificate, files.key, ca)
        case "empty client CA":
            ca.touch()
            return TlsFiles(files.certificate, files.key, ca)
        case "client CA is damaged":
            ca.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
            return TlsFiles(files.certificate, files.key, ca)
        case "client CA is no CA":
            return TlsFiles(files.certificate, files.key, authority.issue("leaf").certificate)
    return files


@pytest.mark.parametrize(
    ("how", "name", "says"),
    [
        ("no certificate", "server.pem", "cannot be read: No such file"),
        ("no key", "server.key", "cannot be read: No such file"),
        ("certificate is no PEM", "server.pem", "no certificate in PEM"),
        ("certificate is damaged", "server.pem", "no certificate in PEM"),
        ("key is no PEM", "server.key", "no private key in PEM"),
        ("key is damaged", "server.key", "does not go with certificate"),
        ("key is encrypted", "server.key", "is encrypted"),
        ("another key", "server.key", "key values mismatch"),
        ("expired", "server.pem", "expired at"),
        ("no client CA", "clients.pem", "cannot be read: No such file"),
        ("empty client CA", "clients.pem", "no certificate in PEM"),
        ("client CA is damaged", "clients.pem", "cannot be read"),
        ("client CA is no CA", "leaf.pem", "holds no CA"),
    ],
)
def test_files_that_cannot_be_used(authority: Authority, files: TlsFiles, how: str, name: str, says: str) -> None:
    with pytest.raises(TlsError) as caught:
        spoil(authority, files, how).load()
    text = str(caught.value)
    assert f'{name}"' in text
    assert says in text
    assert "\n" not in text
