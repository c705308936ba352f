"""A service of no table, whose request has every kind of field: what HTTP rules can say is tried on it."""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from google.api import annotations_pb2
from google.api.http_pb2 import HttpRule
from google.protobuf import text_format
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

from tablegate.gateway.contract.binder.binder import http_routes
from tablegate.gateway.contract.binder.problems import Problems
from tablegate.gateway.contract.descriptors import load_descriptors
from tablegate.gateway.contract.http_rules import HttpRoute

SERVICE = "/test.things.v1.ThingService"

_THINGS = """
syntax = "proto3";
package test.things.v1;
import "google/api/annotations.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/field_mask.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

service ThingService {
  rpc GetThing(Thing) returns (Thing);
  rpc FindThing(Thing) returns (Thing);
  rpc WatchThing(Thing) returns (stream Thing);
  rpc WatchOn(Thing) returns (stream Thing);
  rpc PutThings(stream Thing) returns (Thing);
}

enum Color {
  COLOR_UNSPECIFIED = 0;
  COLOR_DARK_RED = 1;
}

message Inner {
  int64 big_number = 1;
  optional string text_value = 2;
  Inner inner = 3;
  repeated Inner inners = 4;
}

message Thing {
  string name = 1;
  int64 big = 2;
  uint64 big_unsigned = 3;
  int32 small = 4;
  uint32 small_unsigned = 5;
  double wide = 6;
  float narrow = 7;
  bool is_on = 8;
  bytes raw_data = 9;
  Color color = 10;
  google.protobuf.Timestamp start_time = 11;
  google.protobuf.Duration max_wait = 12;
  google.protobuf.FieldMask read_mask = 13;
  google.protobuf.Int64Value boxed_number = 14;
  google.protobuf.StringValue boxed_text = 15;
  repeated int32 sizes = 16;
  repeated Color colors = 17;
  repeated google.protobuf.Timestamp times = 18;
  Inner inner_thing = 19;
  repeated Inner inners = 20;
  map<string, int32> counts = 21;
  google.protobuf.Struct extra = 22;
  optional int64 maybe = 23;
  oneof choice {
    bool first = 24;
    Inner second = 25;
    string third = 26;
  }
  string _under = 27;
}
"""


@cache
def _files() -> FileDescriptorSet:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "test/things/v1/things.proto")
        path.parent.mkdir(parents=True)
        path.write_text(_THINGS)
        return load_descriptors(path)


def thing_service(**rules: str) -> ServiceDescriptor:
    """Return the service with these google.api.http rules, in protobuf's text form, by method."""
    files = FileDescriptorSet()
    files.CopyFrom(_files())
    [service] = files.file[-1].service
    for method in service.method:
        if method.name in rules:
            rule = text_format.Parse(rules[method.name], HttpRule())
            method.options.Extensions[annotations_pb2.http].CopyFrom(rule)
    pool = DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool.FindServiceByName("test.things.v1.ThingService")


def thing_routes(**rules: str) -> tuple[Sequence[HttpRoute], list[str]]:
    """Return the routes of these rules, and what is wrong with them."""
    problems = Problems()
    routes = http_routes([thing_service(**rules)], problems)
    return routes, [str(problem) for problem in problems.found]
