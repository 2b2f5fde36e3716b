"""Requests made up by schemathesis from the service's own OpenAPI: none may end in a fault, and all as it says."""

import subprocess
import sys

import pytest

pytest.importorskip("schemathesis", reason="schemathesis makes up the requests")
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection,unsupported_method"
)


def test_no_made_up_request_ends_in_a_fault(running, logs, tmp_path):
    service = running(rate=0.0)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}/openapi.json", "--checks", CHECKS]
    options = ["--phases", "coverage,fuzzing", "-n", "15", "--seed", "0", "--continue-on-failure", "--no-color"]
    run = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout
    assert "8 passed" in run.stdout or "Tested: 8" in run.stdout
    assert not [line for line in logs if line["event"] == "fault" or line.get("status") == 500]
    assert sum(line["event"] == "request" for line in logs) > 100
