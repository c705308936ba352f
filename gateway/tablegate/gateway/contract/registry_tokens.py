"""Tokens of an OpenID provider, by which a schema registry knows who asks."""

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException

from tablegate.gateway.contract.kafka_file import KafkaSettingsError
from tablegate.gateway.contract.registry_settings import RegistrySettings

PLACE = "in [registry] of the file of --kafka"
_TIMEOUT_S = 10.0


def new_token(registry: RegistrySettings) -> str:
    """Return a token of the OpenID provider; raise `KafkaSettingsError`."""
    url, client, secret = registry.oauth_token_url or "", registry.oauth_client_id, registry.oauth_client_secret
    assert secret is not None, "settings are checked"
    form = {"grant_type": "client_credentials"}
    if registry.oauth_scope is not None:
        form["scope"] = registry.oauth_scope
    user = base64.b64encode(f"{client}:{secret.current()}".encode()).decode()
    try:
        context = ssl.create_default_context()
        if registry.ca_file is not None:
            context.load_verify_locations(registry.ca_file)
        request = urllib.request.Request(url, data=urllib.parse.urlencode(form).encode())
        request.add_unredirected_header("Authorization", f"Basic {user}")  # the secret is for this provider alone
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
            return str(json.load(answer)["access_token"])
    except urllib.error.HTTPError as error:
        error.close()
        raise KafkaSettingsError(
            f'oauth_token_url {url} gives client "{client}" no token (HTTP {error.code}); correct oauth_client_id, its '
            f"secret or oauth_scope {PLACE}"
        ) from None
    except (HTTPException, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise KafkaSettingsError(
                certificate_refusal(f"oauth_token_url {url} has a certificate", registry, str(error))
            ) from None
        raise KafkaSettingsError(f"oauth_token_url {url} gives no token ({error}); correct it {PLACE}") from None


def certificate_refusal(whose: str, registry: RegistrySettings, text: str) -> str:
    """Return what to do about a certificate that is not proved; `whose` has it, `text` is OpenSSL's error."""
    if "certificate is not valid for" in text:
        return f"{whose} of another name; give it by a name that its certificate has"
    if "expired" in text:
        return f"{whose} that has expired; renew it there"
    if registry.ca_file is None:
        return f"{whose} of a CA that this machine does not know; name the CA's file as ca_file {PLACE}"
    return f'{whose} that ca_file "{registry.ca_file}" does not prove; give the CA that signed it'
