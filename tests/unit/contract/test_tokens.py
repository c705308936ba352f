import random
import string

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message

from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.lineage import Place
from tablegate.gateway.contract.tokens import (
    CLIENT_TOKEN_CHARS_MAX,
    TOKEN_CHARS_MAX,
    InvalidToken,
    ReadPositions,
    StaleGeneration,
    TokenFault,
    TokenSigner,
    positions_of,
    request_hasher,
)
from tablegate.gateway.contract.types import Offset, Partition
from tablegate.internal.v1.tokens_pb2 import (
    TOKEN_KIND_CONSISTENCY,
    TOKEN_KIND_PAGE,
    TOKEN_KIND_SCAN,
    Token,
)
from tests.kit.table.contracts import bind_ratings

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
HASH = 0x0123456789ABCDEF
MUTATIONS = 5_000
ALPHABET = string.ascii_letters + string.digits + "-_+/=. \n\x00\u00e9"


def page_token(number: int = 0) -> Token:
    return Token(
        kind=TOKEN_KIND_PAGE,
        table="ratings",
        generation=3,
        request_hash=HASH,
        issue_time_ms=1_795_230_000_000 + number,
        after_key=number.to_bytes(8, "big"),
    )


def open_page(signer: TokenSigner, text: str) -> Token:
    return signer.open(text, kind=TOKEN_KIND_PAGE, table="ratings", generation=3, request_hash=HASH)


def mutate(random_: random.Random, text: str, others: list[str]) -> str:
    at = random_.randrange(len(text))
    end = min(len(text), at + random_.randint(1, 8))
    match random_.randrange(7):
        case 0:
            return text[:at] + random_.choice(ALPHABET) + text[at + 1 :]
        case 1:
            return text[:at] + random_.choice(ALPHABET) + text[at:]
        case 2:
            return text[:at] + text[end:]
        case 3:
            return text[:at]
        case 4:
            return text + "".join(random_.choices(ALPHABET, k=random_.randint(1, 4)))
        case 5:
            other = random_.choice(others)
            return text[:at] + other[at:]
        case _:
            return text[:at] + text[at:end][::-1] + text[end:]


def test_no_mutation_is_accepted():
    random_ = random.Random(362)
    signer = TokenSigner([KEY])
    texts = [signer.sign(page_token(number)) for number in range(50)]
    tried = 0
    while tried < MUTATIONS:
        mutated = mutate(random_, random_.choice(texts), texts)
        if mutated in texts:
            continue
        tried += 1
        with pytest.raises(InvalidToken) as raised:
            open_page(signer, mutated)
        assert raised.value.fault is TokenFault.DAMAGED


def test_each_flipped_bit_is_refused():
    signer = TokenSigner([KEY])
    text = signer.sign(page_token())
    for at in range(len(text)):
        for bit in range(7):
            mutated = text[:at] + chr(ord(text[at]) ^ (1 << bit)) + text[at + 1 :]
            with pytest.raises(InvalidToken):
                open_page(signer, mutated)


@pytest.mark.parametrize("text", ["", "1.", "1", "1.AAAA", "2." + "A" * 40, "1." + "A" * TOKEN_CHARS_MAX, "é" * 40])
def test_what_is_no_token_is_refused(text):
    with pytest.raises(InvalidToken, match="damaged"):
        open_page(TokenSigner([KEY]), text)


def test_another_spelling_of_the_same_bytes_is_refused():
    signer = TokenSigner([KEY])
    for number in range(20):
        text = signer.sign(Token(kind=TOKEN_KIND_PAGE, table="t" * number))
        for spelling in (text + "=", text + "==", text.replace("-", "+").replace("_", "/") + " ", text + "\n"):
            with pytest.raises(InvalidToken):
                signer.open(spelling, kind=TOKEN_KIND_PAGE, table="t" * number, generation=0)


@pytest.mark.parametrize(
    ("belongs", "fault"),
    [
        ({"kind": TOKEN_KIND_SCAN}, TokenFault.OTHER_KIND),
        ({"table": "films"}, TokenFault.OTHER_TABLE),
        ({"request_hash": HASH + 1}, TokenFault.OTHER_REQUEST),
        ({"table": "films", "generation": 4}, TokenFault.OTHER_TABLE),
        ({"request_hash": 0, "generation": 4}, TokenFault.OTHER_REQUEST),
    ],
)
def test_a_token_is_refused_where_it_does_not_belong(belongs, fault):
    signer = TokenSigner([KEY])
    wanted = {"kind": TOKEN_KIND_PAGE, "table": "ratings", "generation": 3, "request_hash": HASH} | belongs
    with pytest.raises(InvalidToken) as raised:
        signer.open(signer.sign(page_token()), **wanted)
    assert raised.value.fault is fault


@pytest.mark.parametrize("generation", [2, 4])
def test_a_token_of_another_generation_says_so(generation):
    signer = TokenSigner([KEY])
    with pytest.raises(StaleGeneration) as raised:
        signer.open(
            signer.sign(page_token()),
            kind=TOKEN_KIND_PAGE,
            table="ratings",
            generation=generation,
            request_hash=HASH,
        )
    assert (raised.value.token_generation, raised.value.generation) == (3, generation)


def test_a_key_can_be_replaced():
    old, new = TokenSigner([KEY]), TokenSigner([OTHER_KEY])
    both = TokenSigner([OTHER_KEY, KEY])
    assert open_page(both, old.sign(page_token())) == page_token()
    assert both.sign(page_token()) == new.sign(page_token())
    assert open_page(new, both.sign(page_token())) == page_token()
    with pytest.raises(InvalidToken, match="damaged, or signed with a key"):
        open_page(new, old.sign(page_token()))


@pytest.mark.parametrize("keys", [[], KEY, [b"short"], [KEY, b""]])
def test_bad_keys_are_refused(keys):
    with pytest.raises(ValueError, match="key"):
        TokenSigner(keys)


@pytest.fixture
def ratings(tmp_path) -> Catalogue:
    return bind_ratings(tmp_path)


def request_of(catalogue: Catalogue, method: str, text: str = "") -> tuple[int, Message]:
    query = catalogue.queries[f"/examples.ratings.v1.RatingsService/{method}"]
    request = text_format.Parse(text, query.request_class())
    return request_hasher(query)(request), request


def test_request_hash_is_of_the_params_alone(ratings):
    plain, _ = request_of(ratings, "ListRatings", "movie_id_from: 3")
    paged, request = request_of(
        ratings,
        "ListRatings",
        'movie_id_from: 3 page_size: 7 page_token: "x" read_options { max_staleness { seconds: 1 } }',
    )
    assert plain == paged
    assert request.page_token == "x", "the request itself is left as it was"
    scan, _ = request_of(ratings, "ScanRatings", 'scan_options { resume_token: "x" }')
    assert scan == request_of(ratings, "ScanRatings")[0]
    subscribe, _ = request_of(ratings, "SubscribeRatings", 'movie_id: 1 subscribe_options { resume_token: "x" }')
    assert subscribe == request_of(ratings, "SubscribeRatings", "movie_id: 1")[0]


def test_request_hash_differs_where_params_or_methods_do(ratings):
    requests = [
        ("ListRatings", ""),
        ("ListRatings", "movie_id_from: 0"),
        ("ListRatings", "movie_id_from: 3"),
        ("ListRatings", "movie_id_before: 3"),
        ("ListRatings", "order: ORDER_DESCENDING"),
        ("ScanRatings", ""),
        ("ScanRatings", "min_rating_count: 0"),
        ("SubscribeRatings", ""),
    ]
    hashes = [request_of(ratings, method, text)[0] for method, text in requests]
    assert len(set(hashes)) == len(hashes)
    assert all(0 < hash_ < 2**64 for hash_ in hashes)


def test_request_hash_is_the_same_in_another_process(ratings):
    assert f"{request_of(ratings, 'ListRatings', 'movie_id_from: 3')[0]:016x}" == "822c745c02c5bdd9"


def test_unknown_fields_do_not_change_the_request_hash(ratings):
    query = ratings.queries["/examples.ratings.v1.RatingsService/ListRatings"]
    plain = query.request_class(movie_id_from=3)
    more = query.request_class.FromString(plain.SerializeToString() + b"\xf8\x07\x01")
    assert request_hasher(query)(plain) == request_hasher(query)(more)


def test_consistency_tokens_hold_positions():
    signer = TokenSigner([KEY])
    token = Token(kind=TOKEN_KIND_CONSISTENCY, table="ratings", generation=1, next_offsets=list(range(500)))
    assert signer.open(signer.sign(token), kind=TOKEN_KIND_CONSISTENCY, table="ratings", generation=1) == token


@pytest.mark.parametrize("count", [1, 120, 500, 1_000, 1_999, 2_000, 3_000])
def test_a_token_that_clients_get_is_short_at_any_count(count: int) -> None:
    chance, signer = random.Random(count), TokenSigner([KEY])
    read = ReadPositions({Partition(at): Place(Offset(chance.randrange(10**9)), 3) for at in range(count)})
    text = signer.sign_read(page_token(), read)
    assert len(text) < CLIENT_TOKEN_CHARS_MAX
    assert positions_of(open_page(signer, text)) == (read if count <= 500 else ReadPositions(everything=True))
