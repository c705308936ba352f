import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tablegate.examples import CONTRACTS
from tablegate.gateway.contract.binder.binder import bind
from tablegate.gateway.contract.descriptors import DescriptorError, load_descriptors, proto_directory
from tests.kit.table.contracts import RATINGS, VISITS


def place(directory, name, text):
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "examples/tablegate/examples/contracts/examples/ratings/v1/ratings.proto",  # where its package says
        "ratings.proto",  # alone in a directory
        "deep/elsewhere/ratings.proto",  # in one that its package does not name
        "a directory/a file.proto",
    ],
)
def test_a_proto_compiles_wherever_it_lies(name, tmp_path):
    assert set(bind(load_descriptors(place(tmp_path, name, RATINGS))).tables) == {"ratings"}


def test_the_working_directory_may_be_any(tmp_path, monkeypatch):
    place(tmp_path, "ratings.proto", RATINGS)
    monkeypatch.chdir(tmp_path)
    assert bind(load_descriptors(Path("ratings.proto"))).tables


def test_own_imports_are_found_beside_and_above(tmp_path):
    head = 'syntax = "proto3";\n'
    place(tmp_path, "common/place.proto", f'{head}package common;\nimport "shared/kind.proto";\nmessage Empty {{}}\n')
    place(tmp_path, "shared/kind.proto", f"{head}package shared;\nenum Kind {{\n  KIND_UNSPECIFIED = 0;\n}}\n")
    place(tmp_path, "contracts/types/currency.proto", f"{head}package types;\nmessage Currency {{}}\n")
    text = VISITS.replace(
        'import "tablegate/v1/query.proto";',
        'import "tablegate/v1/query.proto";\nimport "common/place.proto";\nimport "types/currency.proto";\n'
        '// import "nowhere/at_all.proto";\n/* import "nor/this.proto"; */',
    )
    path = place(tmp_path, "contracts/shop/visits/v1/visits.proto", text)
    names = [file.name for file in load_descriptors(path).file]
    assert {"common/place.proto", "shared/kind.proto", "types/currency.proto"} <= set(names)
    assert names[-1] == "shop/visits/v1/visits.proto"


def test_a_contract_of_many_empty_lines_is_read_at_once(tmp_path):
    path = place(tmp_path, "ratings.proto", RATINGS + "\n" * 50_000 + "// the end\n")
    began_s = time.thread_time()
    assert bind(load_descriptors(path)).tables
    assert time.thread_time() - began_s < 1


def test_a_descriptor_set_is_read(tmp_path):
    contract = CONTRACTS / "examples/ratings/v1/ratings.proto"
    path = tmp_path / "contract.binpb"
    path.write_bytes(load_descriptors(contract).SerializeToString())
    assert load_descriptors(path) == load_descriptors(contract)


def test_options_are_read_where_nothing_else_was_imported(tmp_path):
    path = place(tmp_path, "ratings.proto", RATINGS)
    script = (
        "from pathlib import Path\n"
        "from tablegate.gateway.contract.descriptors import load_descriptors\n"
        f"files = load_descriptors(Path({str(path)!r}))\n"
        "from tablegate.gateway.contract.binder.binder import bind\n"
        "print(*bind(files).tables)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "ratings\n"


def test_a_syntax_error_is_told_with_its_line(tmp_path):
    path = place(tmp_path, "shop/visits/v1/visits.proto", VISITS.replace("int32 page_size = 4;", "int32 page_size 4;"))
    line = VISITS[: VISITS.index("int32 page_size")].count("\n") + 1
    with pytest.raises(DescriptorError, match=rf"shop/visits/v1/visits\.proto:{line}:\d+: Missing field number"):
        load_descriptors(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('key: "shop_name"\n', 'keys: "shop_name"\n', r'"tablegate\.v1\.TableOptions" has no field named "keys"'),
        ("(tablegate.v1.param)", "(tablegate.v1.parameter)", r'Option "\(tablegate\.v1\.parameter\)" unknown'),
        (
            'import "google/api/field_behavior.proto";',
            'import "nowhere/at_all.proto";',
            r"nowhere/at_all\.proto: File not found.*buf build",
        ),
        (
            'import "google/api/field_behavior.proto";',
            'import "tablegate/v1/annotations.proto";',
            r'annotations\.proto: File not found.*import "tablegate/v1/options\.proto" for annotations',
        ),
        ("Visit visit = 1;", "Visitor visit = 1;", r'"Visitor" is not defined'),
        ('syntax = "proto3";', "words", r"visits\.proto:\d+:1: Expected top-level statement"),
    ],
)
def test_what_does_not_compile_is_told_in_one_sentence(old, new, said, tmp_path):
    path = place(tmp_path, "shop/visits/v1/visits.proto", VISITS.replace(old, new, 1))
    with pytest.raises(DescriptorError, match=said) as raised:
        load_descriptors(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("directory", "text"), [(b"d\xff", b"message {"), (b"plain", b'import "d\xff.proto";')], ids=["directory", "import"]
)
def test_what_protoc_says_may_be_in_any_encoding(directory, text, tmp_path):
    path = place(tmp_path, f"{os.fsdecode(directory)}/ratings.proto", "")
    path.write_bytes(b'syntax = "proto3"; ' + text)
    with pytest.raises(DescriptorError, match=r"contract does not compile: .*d\\xff"):
        load_descriptors(path)


def test_a_colon_in_a_path_is_told(tmp_path):
    with pytest.raises(
        DescriptorError, match=r'2026:11/ratings\.proto" does not compile: protoc takes no path with ":"'
    ):
        load_descriptors(place(tmp_path, "2026:11/ratings.proto", RATINGS))


@pytest.mark.skipif(shutil.which("localedef") is None, reason="locales are made with localedef")
def test_a_proto_compiles_whatever_the_locale_makes_of_its_path(tmp_path):
    path = place(tmp_path, "größen/ratings.proto", RATINGS)
    locale = tmp_path / "en_US.ISO-8859-1"
    subprocess.run(["localedef", "-i", "en_US", "-f", "ISO-8859-1", locale], check=False, capture_output=True)
    command = [Path(sys.executable).with_name("tablegate"), "check", path]
    environment = {**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": locale.name, "PYTHONUTF8": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "raw", [b"", b"\x00", b"not a descriptor set", b"\x0a\x00", b"\x0a\x03\x0a\x01\xff", RATINGS.encode()]
)
def test_what_is_no_descriptor_set_is_refused(raw, tmp_path):
    path = tmp_path / "contract.binpb"
    path.write_bytes(raw)
    with pytest.raises(DescriptorError, match=r'contract ".*contract\.binpb" is not a descriptor set; make one'):
        load_descriptors(path)


def test_a_missing_file_is_told(tmp_path):
    for path in (tmp_path / "nothing.proto", tmp_path):
        with pytest.raises(DescriptorError, match=r"is not a file; give a \.proto file or a descriptor set"):
            load_descriptors(path)


def test_the_shipped_protos_are_there():
    assert (proto_directory() / "tablegate/v1/options.proto").is_file()
