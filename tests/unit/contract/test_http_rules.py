import pytest

from tablegate.gateway.contract.binder.binder import ContractError
from tablegate.gateway.contract.http_rules import FieldPath, parameter_fields
from tests.kit.table.contracts import RATINGS, bind_ratings
from tests.kit.table.things import thing_routes


def dotted(field: FieldPath) -> str:
    return ".".join(part.name for part in field)


@pytest.mark.parametrize(
    ("path", "segments", "verb", "variables"),
    [
        ("/v1/things", ("v1", "things"), "", []),
        ("/v1/{name}", ("v1", "*"), "", [("name", 1, 2)]),
        ("/v1/{name}:act", ("v1", "*"), "act", [("name", 1, 2)]),
        ("/v1/things:batchGet", ("v1", "things"), "batchGet", []),
        ("/v1/{name=shelves/*/books/*}", ("v1", "shelves", "*", "books", "*"), "", [("name", 1, 5)]),
        ("/v1/{name=shelves/**}:act", ("v1", "shelves", "**"), "act", [("name", 1, 3)]),
        ("/v1/{name=**}", ("v1", "**"), "", [("name", 1, 2)]),
        ("/v1/**", ("v1", "**"), "", []),
        ("/v1/*/{big}", ("v1", "*", "*"), "", [("big", 2, 3)]),
        ("/{big}/x/{small}", ("*", "x", "*"), "", [("big", 0, 1), ("small", 2, 3)]),
        ("/v1/{inner_thing.big_number}", ("v1", "*"), "", [("inner_thing.big_number", 1, 2)]),
        ("/v1/{start_time}/{boxed_number}", ("v1", "*", "*"), "", [("start_time", 1, 2), ("boxed_number", 2, 3)]),
        ("/v1/{_under}", ("v1", "*"), "", [("_under", 1, 2)]),
        ("/v1/a-b.c~d_e@f%20g", ("v1", "a-b.c~d_e@f%20g"), "", []),
    ],
)
def test_a_template_is_read(path, segments, verb, variables):
    [route], problems = thing_routes(GetThing=f'get: "{path}"')
    assert not problems
    assert (route.template.segments, route.template.verb) == (segments, verb)
    assert [(dotted(one.field), one.start, one.end) for one in route.template.variables] == variables


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", ["begin"]),
        ("v1/things", ['"v1/things"', "begin"]),
        ("/", ["cannot be read"]),
        ("/v1//things", ["cannot be read"]),
        ("/v1/things/", ["cannot be read"]),
        ("/v1/thi ngs", ["cannot be read", '"/thi ngs"']),
        ("/v1/{name", ["cannot be read"]),
        ("/v1/name}", ["cannot be read"]),
        ("/v1/{name=}", ["cannot be read"]),
        ("/v1/{name=a//b}", ["cannot be read"]),
        ("/v1/{name={big}}", ["cannot be read"]),
        ("/v1/a*b", ["cannot be read"]),
        ("/v1/a:b/c", ["cannot be read"]),
        ("/v1/things?x=1", ["cannot be read"]),
        ("/v1/a%2", ["cannot be read"]),
        ("/v1/{name}x", ["no whole segment"]),
        ("/v1/{name}{big}", ["no whole segment"]),
        ("/v1/things:", ["no verb"]),
        ("/v1/things:a b", ["no verb"]),
        ("/v1/{}", ['""']),
        ("/v1/{1name}", ['"1name"']),
        ("/v1/{.name}", ['".name"', "field"]),
        ("/v1/**/things", ["**"]),
        ("/v1/{name=**}/things", ["**"]),
        ("/v1/{title}", ['no field "title"', "message Thing"]),
        ("/v1/{inner_thing.title}", ['no field "title"', "message Inner"]),
        ("/v1/{name.title}", ['"name" has no fields']),
        ("/v1/{start_time.seconds}", ['"start_time" has no fields']),
        ("/v1/{sizes}", ['"sizes" is repeated']),
        ("/v1/{counts}", ['"counts" is repeated']),
        ("/v1/{inners.big_number}", ["is repeated"]),
        ("/v1/{inner_thing}", ['"inner_thing" is a message']),
        ("/v1/{extra}", ['"extra" is a message']),
        ("/v1/{name}/{name}", ["twice"]),
    ],
)
def test_a_wrong_path_is_refused(path, words):
    routes, [problem] = thing_routes(GetThing=f'get: "{path}"')
    assert not routes
    assert problem.startswith("test/things/v1/things.proto: method ThingService.GetThing: google.api.http: ")
    assert all(word in problem for word in words), problem


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", ["no HTTP method"]),
        ('body: "*"', ["no HTTP method"]),
        ('custom: {kind: "HEAD" path: "/v1/things"}', ["no HTTP method", "get, put, post, delete, patch"]),
        ('get: "/v1/things" body: "*"', ["GET has no body"]),
        ('delete: "/v1/things" body: "inner_thing"', ["DELETE has no body"]),
        ('post: "/v1/things" body: "title"', ['body "title"', "message Thing"]),
        ('post: "/v1/things" body: "inner_thing.inner"', ['body "inner_thing.inner"']),
        ('post: "/v1/{big}" body: "big"', ["both body and in the path"]),
        ('get: "/v1/things" response_body: "title"', ['response_body "title"']),
        ('get: "/v1/a" additional_bindings {get: "/v1/b" additional_bindings {get: "/v1/c"}}', ["additional_bindings"]),
        ('get: "/v1/a" additional_bindings {get: "v1/b"}', ["begin"]),
        ('get: "/v1/{name}" additional_bindings {get: "/v1/{big}"}', ['GET "/v1/{big}"', "GetThing already"]),
    ],
)
def test_a_wrong_rule_is_refused(rule, words):
    _, [problem] = thing_routes(GetThing=rule)
    assert all(word in problem for word in words), problem


def test_two_methods_cannot_have_one_route():
    routes, problems = thing_routes(GetThing='get: "/v1/{name}"', FindThing='get: "/v1/{big}"')
    assert len(routes) == 1
    where = "test/things/v1/things.proto: method ThingService.FindThing"
    text = 'GET "/v1/{big}" is a route of method ThingService.GetThing already'
    assert problems == [f"{where}: {text}; give each route a path of its own"]


def test_other_verbs_and_http_methods_are_other_routes():
    more = 'post: "/v1/{name}" additional_bindings {get: "/v1/{name}:find"} additional_bindings {get: "/v1/{name=**}"}'
    routes, problems = thing_routes(GetThing='get: "/v1/{name}"', FindThing=more)
    assert not problems
    assert [(route.method.name, route.http_method) for route in routes] == [
        ("GetThing", "GET"),
        *(("FindThing", http_method) for http_method in ("POST", "GET", "GET")),
    ]


def test_a_stream_of_requests_has_no_route():
    routes, [problem] = thing_routes(PutThings='post: "/v1/things" body: "*"')
    assert not routes
    assert "takes a stream" in problem


def test_bodies():
    [whole], _ = thing_routes(GetThing='post: "/v1/things" body: "*"')
    assert (whole.whole_body, whole.body) == (True, None)
    [part], _ = thing_routes(GetThing='patch: "/v1/{inner_thing.big_number}" body: "inner_thing" response_body: "name"')
    assert part.body is not None
    assert part.response_body is not None
    assert (part.whole_body, part.body.name, part.response_body.name) == (False, "inner_thing", "name")
    assert part.path == "/test.things.v1.ThingService/GetThing"


def test_parameters_are_what_path_and_body_leave_and_texts_can_say():
    [route], _ = thing_routes(GetThing='post: "/v1/{name}/{second.big_number}" body: "maybe"')
    names = [dotted(field) for field in parameter_fields(route)]
    assert names == [
        *("big", "big_unsigned", "small", "small_unsigned", "wide", "narrow", "is_on", "raw_data", "color"),
        *("start_time", "max_wait", "read_mask", "boxed_number", "boxed_text", "sizes", "colors", "times"),
        *("inner_thing.big_number", "inner_thing.text_value", "first", "second.text_value", "third", "_under"),
    ]
    [whole], _ = thing_routes(GetThing='post: "/v1/things" body: "*"')
    assert not parameter_fields(whole)


def test_the_catalogue_has_the_routes(tmp_path):
    routes = bind_ratings(tmp_path).routes
    assert [(route.http_method, route.path.rpartition("/")[2], route.template.verb) for route in routes] == [
        ("GET", "GetRating", ""),
        ("POST", "BatchGetRatings", "batchGet"),
        ("GET", "ListRatings", ""),
        ("GET", "ScanRatings", "scan"),
        ("GET", "CountRatings", "count"),
        ("GET", "SubscribeRatings", "subscribe"),
    ]


def test_the_binder_tells_them_with_all_other_problems(tmp_path):
    text = RATINGS.replace("/v1/ratings/{movie_id}", "/v1/ratings/{film_id}").replace("max_keys: 500", "max_keys: 5000")
    with pytest.raises(ContractError) as raised:
        bind_ratings(tmp_path, text)
    assert len(raised.value.problems) == 2
    assert "examples/ratings/v1/ratings.proto: method RatingsService.GetRating: google.api.http: " in str(raised.value)
