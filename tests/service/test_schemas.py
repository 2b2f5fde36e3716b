"""The OpenAPI schema: it follows the columns, and schemathesis finds no request that it does not describe."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from onsphere.export.deployed import open_deployed
from onsphere.service.schemas import Options, build_body_model


def test_the_schema_follows_the_columns(text_facts, models):
    by_name, in_order = describe_row(text_facts)
    assert [each["type"] for each in by_name["properties"]["n"]["anyOf"]] == ["number", "string", "null"]
    assert "format" not in by_name["properties"]["d"]["anyOf"][0]
    assert in_order["minItems"] == 5
    array = open_deployed(models["array"]).facts
    assert set(describe_row(array)[0]["properties"]) == {"x0", "x1"}


def test_a_coverage_comes_in_steps():
    """Each is followed for good once labels come."""
    for step in range(1, 200):
        assert Options.model_validate({"coverage": f"{step / 200:.3f}"}).coverage == step / 200
    for wrong in ("5e-324", "0.9001", "0.9000000000001", "0.9999999999999"):
        with pytest.raises(ValidationError):
            Options.model_validate({"coverage": wrong})


def describe_row(facts):
    schema = build_body_model(facts, 5).json_schema()
    return schema["$defs"]["Row"], schema["properties"]["rows"]["items"]["anyOf"][1]


pytest.importorskip("schemathesis", reason="schemathesis makes up the requests")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method"
)


def test_no_generated_request_fails(running, logs, tmp_path):
    service = running()
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", "--checks", CHECKS]
    options = ["--phases", "coverage,fuzzing", "-n", "15", "--seed", "0", "--continue-on-failure", "--no-color"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout
    assert "9 passed" in run.stdout or "Tested: 9" in run.stdout
    assert not [line for line in logs if line["event"] == "fault" or line.get("status") == 500]
    assert sum(line["event"] == "request" for line in logs) > 100
