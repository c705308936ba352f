"""What librdkafka says of a connection or a right, as a sentence for whoever has to mend it."""

import pytest

from tablegate.gateway.contract.kafka_refusals import Right, refused_connection, refused_right

SERVERS = {"bootstrap.servers": "one:9093"}
USER = {**SERVERS, "sasl.username": "shop", "sasl.password": "sesame", "ssl.ca.location": "/ca.pem"}
TOKEN = {
    **SERVERS,
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.client.id": "shop",
    "sasl.oauthbearer.client.secret": "sesame",
    "sasl.oauthbearer.token.endpoint.url": "https://id/token",
}
OWNER = {**SERVERS, "ssl.certificate.location": "/client.pem"}
UNPROVED = "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not"
ALERT = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42"


@pytest.mark.parametrize(
    ("client", "error", "text", "sentence"),
    [
        (
            USER,
            "_AUTHENTICATION",
            "sasl_ssl://one:9093/bootstrap: SASL authentication error: Wrong (after 309ms in state AUTH_REQ)",
            'does not let in user "shop" (Wrong); correct username, password or mechanism',
        ),
        (
            TOKEN,
            "_AUTHENTICATION",
            "No token: invalid_client",
            (
                'does not let in client "shop" by a token of https://id/token (No token: invalid_client); correct '
                "oauth_client_id, its secret or oauth_scope"
            ),
        ),
        (
            SERVERS,
            "_BAD_MSG",
            "one:9093/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): increase receive",
            "is no broker, or one of TLS: it answers in another protocol; correct bootstrap or protocol",
        ),
        (USER, "_SSL", UNPROVED, 'has a certificate that ca_file "/ca.pem" does not prove; give the CA that signed it'),
        (
            SERVERS,
            "_SSL",
            UNPROVED,
            "has a certificate of a CA that this machine does not know; name the CA's file as ca_file",
        ),
        (
            SERVERS,
            "_TRANSPORT",
            ALERT,
            "wants a certificate of the client; give certificate_file and key_file",
        ),
        (
            OWNER,
            "_TRANSPORT",
            ALERT,
            'refuses certificate_file "/client.pem"; give one that a CA of the brokers signed',
        ),
        (
            SERVERS,
            "_TRANSPORT",
            "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            "has no TLS there; correct protocol or bootstrap",
        ),
        (
            SERVERS,
            "_SSL",
            "ssl://one:9093/bootstrap: SSL handshake failed: unsupported (after 3ms in state SSL_HANDSHAKE)",
            "cannot be spoken to by TLS (SSL handshake failed: unsupported); correct protocol",
        ),
    ],
)
def test_who_is_not_let_in_learns_why(client: dict[str, str], error: str, text: str, sentence: str) -> None:
    assert refused_connection(client, error, text) == f"Kafka at one:9093 {sentence}"


@pytest.mark.parametrize("error", ["_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT"])
def test_brokers_that_are_away_refuse_nobody(error: str) -> None:
    assert refused_connection(USER, error, "one:9093/bootstrap: Connection refused") is None


@pytest.mark.parametrize(
    ("client", "who", "principal"),
    [
        (USER, 'user "shop"', "User:shop"),
        (TOKEN, 'client "shop"', "User:shop"),
        (OWNER, 'the owner of certificate_file "/client.pem"', "USER"),
        (SERVERS, "a client without a name", "USER"),
    ],
)
def test_a_right_that_is_missing_is_named(client: dict[str, str], who: str, principal: str) -> None:
    assert refused_right(client, "TOPIC_AUTHORIZATION_FAILED", Right("Read", "topic", "tables")) == (
        f'Kafka gives {who} no right to Read on topic "tables"; add it with kafka-acls.sh --add --allow-principal '
        f"{principal} --operation Read --topic tables"
    )
    assert refused_right(client, "UNKNOWN_TOPIC_OR_PART", Right("Read", "topic", "tables")) is None
