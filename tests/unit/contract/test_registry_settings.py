"""The section `[registry]` of the file of `--kafka`, and the URL of `--schema-registry` over it."""

from pathlib import Path

import pytest

from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.kafka_settings import load_settings
from tablegate.gateway.contract.registry_settings import RegistrySettings, load_registry

PASSWORD = 'correct"horse'  # no Java client reads it


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "key.pem").write_text("-----BEGIN EC PRIVATE KEY-----\n")
    (tmp_path / "locked.pem").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "kafka.toml"
    file.write_text(f'bootstrap = "a:1"\n{text}')
    return file


def loaded(file: Path | None = None, *, url: str | None = None, **environ: str) -> RegistrySettings:
    variables = {f"TABLEGATE_KAFKA_REGISTRY_{name.upper()}": value for name, value in environ.items()}
    settings = load_registry(file, url=url, environ=variables)
    assert settings is not None
    return settings


BASIC = """[registry]
url = "https://registry.example/api/"
ca_file = "ca.pem"
certificate_file = "ca.pem"
key_file = "key.pem"
username = "tablegate"
password_file = "password"
"""


def test_a_user_and_a_certificate(folder: Path) -> None:
    file = written(folder, BASIC)
    settings = loaded(file)
    assert (settings.url, settings.username) == ("https://registry.example/api", "tablegate")
    assert (settings.ca_file, settings.key_file) == (folder / "ca.pem", folder / "key.pem")
    assert settings.password is not None
    assert settings.password.text == PASSWORD
    assert PASSWORD not in repr(settings)
    assert load_settings(file, environ={}).bootstrap == "a:1"


def test_an_openid_client_and_what_confluent_cloud_wants(folder: Path) -> None:
    text = """[registry]
    url = "https://registry.example"
    oauth_token_url = "https://login.example/token"
    oauth_client_id = "tablegate"
    oauth_client_secret_file = "password"
    confluent_cluster = "lsrc-1"
    confluent_identity_pool = "pool-1"
    """
    settings = loaded(written(folder, text))
    assert (settings.oauth_client_id, settings.oauth_scope) == ("tablegate", None)
    assert (settings.confluent_cluster, settings.confluent_identity_pool) == ("lsrc-1", "pool-1")


def test_the_environment_goes_over_the_file_and_an_option_over_both(folder: Path) -> None:
    file = written(folder, BASIC)
    settings = loaded(file, url="https://other.example", username="other", password="x")
    assert settings.url == "https://other.example"
    assert settings.username == "other"
    assert settings.password is not None
    assert settings.password.text == "x"
    assert loaded(file, url="https://other.example", url_="").ca_file == folder / "ca.pem"


def test_the_environment_alone_is_enough() -> None:
    assert loaded(url_="", url="http://a:1").url == "http://a:1"
    settings = load_registry(environ={"TABLEGATE_KAFKA_REGISTRY_URL": "http://a:1"})
    assert settings == RegistrySettings(url="http://a:1")


def test_without_a_section_there_is_no_registry(folder: Path) -> None:
    assert load_registry(written(folder, ""), environ={}) is None
    assert load_registry(environ={"TABLEGATE_KAFKA_USERNAME": "x"}) is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('username = "x"', 'kafka.toml" [registry] names no url; give it, or --schema-registry'),
        ('url = "registry:8081"', 'kafka.toml" [registry] url is not a URL; give http://host:port'),
        ('url = "https://u:p@a"', 'kafka.toml" [registry] url has a user, and others may read'),
        ('url = "https://a"\npassword = "x"', "[registry] password is a secret: write it into a file of its own"),
        ('url = "https://a"\nuser = "x"', "[registry] user is unknown; known are ca_file, certificate_file"),
        ('url = "https://a"\nusername = "x"', "has one of username and password_file"),
        ('url = "https://a"\ncertificate_file = "ca.pem"', "has one of certificate_file and key_file"),
        ('url = "http://a"\nca_file = "ca.pem"', "names TLS files, which http:// does not use"),
        ('url = "https://a"\nkey_file = "locked.pem"', 'locked.pem" has no unencrypted private key'),
        (
            'url = "https://a"\noauth_scope = "x"',
            "needs oauth_token_url and oauth_client_id and oauth_client_secret_file",
        ),
        (
            'url = "https://a"\ntoken_file = "password"\nusername = "x"\npassword_file = "password"',
            "says in more than one way who asks; keep one of username, token_file and oauth_client_id",
        ),
        ('url = "https://a"\ntoken_file = "ca.pem"', "ends with a line break"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(folder: Path, text: str, sentence: str) -> None:
    with pytest.raises(KafkaSettingsError) as caught:
        loaded(written(folder, f"[registry]\n{text}"))
    assert sentence in str(caught.value)


def test_a_secret_that_changed_is_read_anew(folder: Path) -> None:
    password = loaded(written(folder, BASIC)).password
    assert password is not None
    (folder / "password").write_text("next\n")
    assert password.current() == "next"
    for lost in (lambda: (folder / "password").write_text(""), (folder / "password").unlink):
        lost()
        assert password.current() == PASSWORD


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("http://host:8081", "http://host:8081"),
        ("https://host/registry/", "https://host/registry"),
        ("http://[::1]:8081", "http://[::1]:8081"),
        ("http://one:1, http://two:2/", "http://one:1,http://two:2"),
    ],
)
def test_urls_are_as_clients_want_them(url: str, clean: str) -> None:
    assert loaded(url=url).url == clean


@pytest.mark.parametrize("url", ["https://user:secret@host", "https://user@host", "http://a,http://u:secret@b"])
def test_a_password_in_the_list_of_processes_is_refused(url: str) -> None:
    with pytest.raises(KafkaSettingsError, match="--schema-registry has a user, and others may read its") as caught:
        load_registry(url=url, environ={})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:8081",
        "ftp://u:secret@host",
        "http://",
        "http://u:secret/x@host",
        "http://u:12/secret@host",
        "http://[1",
    ],
)
def test_what_is_no_url_is_not_repeated(url: str) -> None:
    with pytest.raises(KafkaSettingsError, match="--schema-registry is not a URL; give http://host:port") as caught:
        load_registry(url=url, environ={})
    assert "secret" not in str(caught.value)
