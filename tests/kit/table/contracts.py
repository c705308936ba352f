"""Good contracts for tests."""

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.binder.binder import bind, merge
from tablegate.gateway.contract.catalogue import Catalogue
from tablegate.gateway.contract.descriptors import load_descriptors, proto_directory

INSTALLED = [Path(protoc.__file__).parents[1], Path(protoc.__file__).parent / "_proto"]  # what contracts import

RATINGS = (CONTRACTS / "examples/ratings/v1/ratings.proto").read_text("utf-8")

# Two key columns, one of them a timestamp, of which the first chooses the partition.
VISITS = """
syntax = "proto3";
package shop.visits.v1;
import "tablegate/v1/options.proto";
import "tablegate/v1/query.proto";
import "google/api/field_behavior.proto";
import "google/protobuf/timestamp.proto";

service VisitsService {
  rpc GetVisit(GetVisitRequest) returns (GetVisitResponse) {
    option (tablegate.v1.query) = { get: {on_missing: ON_MISSING_EMPTY} };
  }
  rpc ListVisits(ListVisitsRequest) returns (ListVisitsResponse) {
    option (tablegate.v1.query) = { range: {max_page_size: 20} };
  }
  rpc SubscribeVisits(SubscribeVisitsRequest) returns (stream SubscribeVisitsResponse) {
    option (tablegate.v1.query) = { subscribe: {} };
  }
  rpc ForgetVisits(GetVisitRequest) returns (GetVisitResponse);
}

enum Place {
  PLACE_UNSPECIFIED = 0;
  PLACE_SHOP = 1;
}

message Visit {
  option (tablegate.v1.table) = {
    name: "visits"
    key: "shop_name"
    key: "start_time"
    partition_by: "shop_name"
  };
  string shop_name = 1;
  google.protobuf.Timestamp start_time = 2;
  Place place = 3;
  optional bool paid = 4;
}

message VisitKey {
  string shop_name = 1;
  google.protobuf.Timestamp start_time = 2;
}

message GetVisitRequest {
  string shop_name = 1;
  google.protobuf.Timestamp start_time = 2;
}

message GetVisitResponse {
  Visit visit = 1;
}

message ListVisitsRequest {
  string shop_name = 1;
  google.protobuf.Timestamp start_time_from = 2 [(tablegate.v1.param) = {column: "start_time" op: OP_GTE}];
  int32 page_size = 4;
  string page_token = 5;
}

message ListVisitsResponse {
  repeated Visit visits = 1;
  string next_page_token = 2;
}

message SubscribeVisitsRequest {
  string shop_name = 1;
  optional Place place = 2;
  tablegate.v1.SubscribeOptions subscribe_options = 3;
}

message SubscribeVisitsResponse {
  repeated VisitChange changes = 1;
  tablegate.v1.SubscribeProgress progress = 2;
}

message VisitChange {
  oneof change {
    Visit upsert = 1;
    VisitKey delete = 2;
  }
}
"""


def edited(text: str, *edits: tuple[str, str]) -> str:
    """Return a text in which each first of a pair is its second; all are there."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def bind_sources(directory: Path, **sources: str) -> Catalogue:
    """Compile and bind contracts, given as text by path, with "__" for "/" and without ".proto"."""
    sets = []
    for name, text in sources.items():
        path = directory / (name.replace("__", "/") + ".proto")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        sets.append(compile_contract(path, directory))
    return bind(merge(sets))


def compile_contract(path: Path, root: Path) -> FileDescriptorSet:
    """Return what `load_descriptors` does, without a process for each of hundreds; it compiles what this cannot."""
    out = path.with_suffix(".binpb")
    includes = [root, proto_directory(), *INSTALLED]
    options = ["--include_imports", "--include_source_info", f"--descriptor_set_out={out}"]
    if protoc.main(["protoc", *options, *(f"-I{include}" for include in includes), str(path)]) != 0:
        return load_descriptors(path)
    return FileDescriptorSet.FromString(out.read_bytes())


def bind_ratings(directory: Path, text: str = RATINGS) -> Catalogue:
    return bind_sources(directory, examples__ratings__v1__ratings=text)


def bind_visits(directory: Path, text: str = VISITS) -> Catalogue:
    return bind_sources(directory, shop__visits__v1__visits=text)
