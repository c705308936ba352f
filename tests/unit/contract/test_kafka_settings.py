"""The file of `--kafka`, and what each of Kafka's clients is told."""

import base64
import os
import time
from pathlib import Path

import pytest

from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.kafka_settings import (
    KafkaSettings,
    load_settings,
    settings_of,
    source_cluster,
    use,
)

PASSWORD = "correct-horse"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "kafka.toml"
    file.write_text(text)
    return file


SCRAM = """
bootstrap = "a:9093, b:9093"
protocol = "SASL_SSL"
mechanism = "scram-sha-512"
username = "tablegate"
password_file = "password"
ca_file = "ca.pem"
[options]
"client.rack" = "eu-1a"
"""


def test_scram_for_both_clients(folder: Path) -> None:
    settings = load_settings(written(folder, SCRAM), environ={})
    assert settings.librdkafka() == {
        "bootstrap.servers": "a:9093,b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "tablegate",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(folder / "ca.pem"),
        "client.rack": "eu-1a",
    }
    java = settings.java()
    assert java["sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="tablegate" password="${{dir:{folder}:password}}";'
    )
    assert java["config.providers"] == "dir,env"
    assert (java["ssl.truststore.type"], java["ssl.truststore.location"]) == ("PEM", str(folder / "ca.pem"))


def test_a_certificate_of_ones_own(folder: Path) -> None:
    text = (
        'bootstrap = "a:1"\nprotocol = "SSL"\nca_file = "ca.pem"\ncertificate_file = "ca.pem"\nkey_file = "key.pem"\n'
    )
    settings = load_settings(
        written(folder, text + '[options]\n"ssl.endpoint.identification.algorithm" = "none"'), environ={}
    )
    librdkafka, java = settings.librdkafka(), settings.java()
    assert librdkafka["ssl.key.location"] == str(folder / "key.pem")
    assert librdkafka["ssl.endpoint.identification.algorithm"] == "none"
    assert java["ssl.keystore.key"] == f"${{dir:{folder}:key.pem}}"
    assert java["ssl.endpoint.identification.algorithm"] == ""


def test_oauthbearer(folder: Path) -> None:
    text = """
    protocol = "SASL_SSL"
    mechanism = "OAUTHBEARER"
    oauth_token_url = "https://login.example/token"
    oauth_client_id = "tablegate"
    oauth_client_secret_file = "password"
    oauth_scope = "kafka"
    """
    settings = load_settings(written(folder, text), bootstrap="a:1", environ={})
    librdkafka = settings.librdkafka()
    assert librdkafka["sasl.oauthbearer.method"] == "oidc"
    assert librdkafka["sasl.oauthbearer.client.secret"] == PASSWORD
    java = settings.java()
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://login.example/token"
    assert f'clientSecret="${{dir:{folder}:password}}" scope="kafka";' in java["sasl.jaas.config"]


MSK = """
bootstrap = "b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com:9098"
protocol = "SASL_SSL"
mechanism = "AWS_MSK_IAM"
"""
NOT_OF_THIS_MACHINE = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NOT_OF_THIS_MACHINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", PASSWORD)


@pytest.mark.usefixtures("aws")
def test_iam_of_msk_is_a_token_and_a_mechanism_of_java(folder: Path) -> None:
    settings = load_settings(written(folder, MSK), environ={})
    librdkafka, java = settings.librdkafka(), settings.java()
    assert librdkafka["sasl.mechanism"] == "OAUTHBEARER"
    token, expiry_s = librdkafka["oauth_cb"](None)
    signed = base64.urlsafe_b64decode(token + "==").decode()
    assert signed.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&")
    assert "AKIDEXAMPLE" in signed
    assert 0 < expiry_s - time.time() <= 3_600
    assert java["sasl.mechanism"] == "AWS_MSK_IAM"
    assert java["sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"
    assert "config.providers" not in java
    assert PASSWORD not in str((librdkafka, java, settings))


@pytest.mark.usefixtures("aws")
def test_a_region_that_no_name_has_is_given(folder: Path) -> None:
    text = MSK.replace("b-1.shop.x1.c2.kafka.eu-west-1.amazonaws.com", "proxy.example")
    with pytest.raises(KafkaSettingsError, match="mechanism AWS_MSK_IAM needs aws_region"):
        load_settings(written(folder, text), environ={})
    assert load_settings(written(folder, f'{text}aws_region = "us-east-1"'), environ={}).aws_region == "us-east-1"


def test_iam_of_msk_without_credentials_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**NOT_OF_THIS_MACHINE, "AWS_SHARED_CREDENTIALS_FILE": "none"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(KafkaSettingsError, match=r"finds no credentials of AWS \(there are none\); give AWS_ACCESS"):
        load_settings(written(folder, MSK), environ={})


def test_no_secret_is_shown(folder: Path) -> None:
    settings = load_settings(written(folder, SCRAM), environ={})
    assert PASSWORD not in repr(settings)
    assert PASSWORD not in str(settings.java())


def test_the_environment_goes_over_the_file_and_an_option_over_both(folder: Path) -> None:
    environ = {
        "TABLEGATE_KAFKA_USERNAME": "other",
        "TABLEGATE_KAFKA_BOOTSTRAP": "c:1",
        "TABLEGATE_KAFKA_PASSWORD": "x",
    }
    settings = load_settings(written(folder, SCRAM), bootstrap="d:1", environ=environ)
    assert (settings.username, settings.bootstrap) == ("other", "d:1")
    assert settings.librdkafka()["sasl.password"] == "x"
    assert 'password="${env:TABLEGATE_KAFKA_PASSWORD}"' in settings.java()["sasl.jaas.config"]
    assert load_settings(written(folder, SCRAM), environ=environ).bootstrap == "c:1"


def test_without_a_file_it_is_plain_text() -> None:
    settings = load_settings(bootstrap="a:1", environ={})
    assert settings.librdkafka() == settings.java() == {"bootstrap.servers": "a:1"}


def test_a_cluster_is_known_by_its_bootstrap_servers(folder: Path) -> None:
    settings = load_settings(written(folder, SCRAM), environ={})
    assert settings_of(use(settings)) == settings
    assert settings_of("unknown:1") == KafkaSettings(bootstrap="unknown:1")


def test_settings_that_are_in_use_stay(folder: Path) -> None:
    text = SCRAM.replace("a:9093, b:9093", "stay:1")
    settings = load_settings(written(folder, text), environ={})
    use(settings)
    use(load_settings(bootstrap="stay:1", environ={}))
    use(load_settings(written(folder, text), environ={}))
    assert settings_of("stay:1") == settings
    with pytest.raises(KafkaSettingsError, match="reaches Kafka at stay:1 by other settings already"):
        use(load_settings(written(folder, text.replace("tablegate", "other")), environ={}))


def test_a_backslash_in_a_name_is_for_jaas(folder: Path) -> None:
    text = SCRAM.replace('"tablegate"', r"'SHOP\tablegate'")
    java = load_settings(written(folder, text.replace("\\\\", "\\")), environ={}).java()
    assert r'username="SHOP\\tablegate"' in java["sasl.jaas.config"]


@pytest.mark.parametrize("name", ["a:b", "a}b", "a\\b"])
def test_paths_that_the_java_client_would_misread_are_refused(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "password").write_text(PASSWORD)
    text = SCRAM.replace('"password"', f"'{name}/password'")
    with pytest.raises(KafkaSettingsError, match="would misread: use another path"):
        load_settings(written(folder, text), environ={})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bootstrap = 1", 'kafka.toml" bootstrap is no text'),
        ('bootstrap = "a"', 'bootstrap "a" names no Kafka brokers'),
        ("", "no Kafka brokers are named: give --bootstrap"),
        ("bootstrap =", 'kafka.toml" is no TOML'),
        ('bootstrap = "a:1"\nsasl = "x"', 'kafka.toml" sasl is unknown; known are aws_region, bootstrap'),
        ('bootstrap = "a:1"\npassword = "x"', "name that by password_file"),
        ('bootstrap = "a:1"\nprotocol = "TLS"', 'protocol "TLS" is none of PLAINTEXT, SSL'),
        ('bootstrap = "a:1"\nprotocol = "SASL_SSL"', "protocol SASL_SSL needs a mechanism"),
        ('bootstrap = "a:1"\nprotocol = "SASL_SSL"\nmechanism = "PLAIN"', "needs username and password_file"),
        (
            'bootstrap = "a:1"\nprotocol = "SASL_SSL"\nmechanism = "OAUTHBEARER"\noauth_client_id = "x"',
            "needs oauth_token_url and oauth_client_secret_file",
        ),
        (
            'bootstrap = "a:1"\nprotocol = "SASL_PLAINTEXT"\nmechanism = "AWS_MSK_IAM"',
            "mechanism AWS_MSK_IAM needs protocol SASL_SSL",
        ),
        ('bootstrap = "a:1"\nusername = "x"', "names a user, which protocol PLAINTEXT does not send"),
        ('bootstrap = "a:1"\nca_file = "ca.pem"', "names TLS files, which protocol PLAINTEXT does not use"),
        ('bootstrap = "a:1"\nprotocol = "SSL"\ncertificate_file = "ca.pem"', "give both, or none"),
        ('bootstrap = "a:1"\nprotocol = "SSL"\nca_file = "missing"', 'missing" cannot be read: No such file'),
        ('bootstrap = "a:1"\nprotocol = "SSL"\nca_file = "key.pem"', 'key.pem" has no certificates'),
        (
            'bootstrap = "a:1"\nprotocol = "SSL"\nkey_file = "ca.pem"',
            'ca.pem" has no unencrypted private key in PKCS #8',
        ),
        ('bootstrap = "a:1"\npassword_file = "ca.pem"', "ends with a line break"),
        ('bootstrap = "a:1"\n[options]\n"group.id" = "x"', 'options "group.id" cannot be set; these can: client.rack'),
        ('bootstrap = "a:1"\noptions = 1', "options is no table"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(folder: Path, text: str, sentence: str) -> None:
    with pytest.raises(KafkaSettingsError) as caught:
        load_settings(written(folder, text), environ={})
    assert sentence in str(caught.value)


def test_an_encrypted_key_is_refused(folder: Path) -> None:
    """As openssl writes it: the Java client says "PBES2 SecretKeyFactory not available"."""
    (folder / "key.pem").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    text = 'bootstrap = "a:1"\nprotocol = "SSL"\ncertificate_file = "ca.pem"\nkey_file = "key.pem"'
    with pytest.raises(KafkaSettingsError, match="openssl pkcs8 -topk8 -nocrypt"):
        load_settings(written(folder, text), environ={})


@pytest.mark.parametrize("secret", ["", 'a"b', "a\\b", "a\tb"])
def test_secrets_that_a_client_would_misread_are_refused(secret: str) -> None:
    with pytest.raises(KafkaSettingsError, match="TABLEGATE_KAFKA_PASSWORD is empty, or has"):
        load_settings(bootstrap="a:1", environ={"TABLEGATE_KAFKA_PASSWORD": secret})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KafkaSettingsError, match="cannot be read: No such file"):
        load_settings(tmp_path / "none.toml", environ={})


TWO = """
bootstrap = "tables:9092"
topic_prefix = "prod."
[sources]
bootstrap = "a:9093"
protocol = "SASL_SSL"
mechanism = "PLAIN"
username = "reader"
password_file = "password"
ca_file = "ca.pem"
"""


@pytest.mark.parametrize("prefix", ["shop", "shop_", "shop.2", "s p.", "é.", "s" * 100 + "."])
def test_a_prefix_that_could_be_part_of_a_table_is_refused(folder: Path, prefix: str) -> None:
    """With "shop_", the changelog of "orders" would be that of "shop_orders" in an installation without a prefix."""
    file = written(folder, f'bootstrap = "a:1"\ntopic_prefix = "{prefix}"\n')
    with pytest.raises(KafkaSettingsError, match=r'topic_prefix ".*" is not of .* the last of them "\." or "-"'):
        load_settings(file, environ={})


@pytest.mark.parametrize("prefix", ["shop.", "shop-", "shop_2.", "shop.eu."])
def test_topics_of_an_installation_begin_with_its_prefix(folder: Path, prefix: str) -> None:
    settings = load_settings(written(folder, f'bootstrap = "a:1"\ntopic_prefix = "{prefix}"\n'), environ={})
    assert settings.own_topic("tables") == f"{prefix}tables"


def test_sources_may_have_a_cluster_of_their_own(folder: Path) -> None:
    settings = load_settings(written(folder, TWO), environ={})
    assert settings.librdkafka() == {"bootstrap.servers": "tables:9092"}
    assert settings.sources is not None
    assert settings.sources.librdkafka()["sasl.username"] == "reader"
    assert settings.files() == [folder / "ca.pem", folder / "password"]
    use(settings)
    assert source_cluster("tables:9092") == "a:9093"
    assert source_cluster("a:9093") == "a:9093"
    assert settings_of("a:9093").protocol == "SASL_SSL"


def test_the_environment_and_an_option_name_the_cluster_of_sources(folder: Path) -> None:
    environ = {"TABLEGATE_KAFKA_SOURCES_BOOTSTRAP": "b:9092", "TABLEGATE_KAFKA_SOURCES_PROTOCOL": "SSL"}
    by_environment = load_settings(bootstrap="c:9092", environ=environ)
    assert by_environment.sources == KafkaSettings(bootstrap="b:9092", protocol="SSL")
    by_option = load_settings(written(folder, TWO), source_bootstrap="d:9092", environ={})
    assert by_option.sources is not None
    assert by_option.sources.bootstrap == "d:9092"
    assert by_option.sources.username == "reader"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ('bootstrap = "a:9093"', "names no Kafka brokers: give bootstrap"),
        ('username = "reader"', "mechanism PLAIN needs username"),
        ('"a:9093"|"a:9093, tables:9092"', "names a:9093,tables:9092, which has the tables, too: leave sources out"),
        ('mechanism = "PLAIN"|mechanism = "PLAIN"\ntopic_prefix = "x"', "has a topic_prefix, which is of the topics"),
        ('username = "reader"|user = "reader"', "[sources] user is unknown"),
        ('password_file = "password"|password = "x"', "[sources] password is a secret"),
    ],
)
def test_a_wrong_section_of_sources_is_refused(folder: Path, change: str, sentence: str) -> None:
    before, _, after = change.partition("|")
    assert before in TWO
    with pytest.raises(KafkaSettingsError) as refused:
        load_settings(written(folder, TWO.replace(before, after)), environ={})
    assert sentence in str(refused.value)
    assert "[sources]" in str(refused.value)
