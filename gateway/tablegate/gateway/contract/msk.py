"""IAM of Amazon MSK: a signed request stands for a password. Who asks is found as AWS's programs find it.

librdkafka sends the signature as a token of OAUTHBEARER, the Java client by a mechanism of its own, from a jar of AWS.
"""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tablegate.gateway.contract.kafka_file import KafkaSettingsError

MECHANISM = "AWS_MSK_IAM"
TOKEN_OPTION = "oauth_cb"
JAVA: Mapping[str, str] = {
    "sasl.mechanism": MECHANISM,
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}

_SIGNER = "aws_msk_iam_sasl_signer"
_REGION_OF_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """Signs tokens of a region."""

    region: str

    def __call__(self, _config: str | None) -> tuple[str, float]:
        """Return a token and when it ends, in seconds since 1970; raise what AWS's library does."""
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider  # type: ignore[import-untyped]

        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(self.region)
        return token, expiry_ms / 1_000


def region_of(bootstrap: str) -> str | None:
    """Return the region that the names of MSK's brokers have; None for other names."""
    found = _REGION_OF_HOST.search(bootstrap)
    return found[1] if found is not None else None


def check_signer(region: str) -> None:
    """Raise `KafkaSettingsError` where no token can be signed: a client would wait for one in vain."""
    if importlib.util.find_spec(_SIGNER) is None:
        raise KafkaSettingsError(f'mechanism {MECHANISM} needs a library: pip install "tablegate-gateway[msk]"')
    try:
        TokenSigner(region)(None)
    # The library has no class of its own for its errors, and fails on credentials that are missing with another one.
    except Exception as error:  # noqa: BLE001
        why = "there are none" if isinstance(error, AttributeError) else str(error)
        raise KafkaSettingsError(
            f"mechanism {MECHANISM} finds no credentials of AWS ({why}); give AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a role of the machine"
        ) from None
