"""The files to deploy with: linted, and the proxy run in front of a service."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import yaml

from onsphere.service.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_the_dockerfile_has_no_known_faults():
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    run = subprocess.run([str(hadolint), str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout


def test_the_compose_file_names_settings_and_services_that_exist():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    names = {f"ONSPHERE_{name.upper()}" for name in Settings.model_fields}
    assert set(compose["services"]["service"]["environment"]) <= names | {"PGPASSWORD"}
    for service in compose["services"].values():
        assert set(service.get("depends_on", ())) <= set(compose["services"])
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    given = {part.split("=")[0] for part in dockerfile.split() if part.startswith("ONSPHERE_")}
    assert given <= names
    assert "server service:8000;" in (DEPLOY / "nginx.conf").read_text()


def test_the_proxy_limits_each_client_and_says_who_asks(running, helpers, tmp_path, logs):
    nginx = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if nginx is None:
        pytest.skip("nginx is not installed")
    service = running(forwarded_allow_ips=("127.0.0.1",), open=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    text = (DEPLOY / "nginx.conf").read_text()
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}").replace(
        "service:8000", f"127.0.0.1:{service.port}"
    )
    text = "\n".join(line for line in text.splitlines() if "ssl_certificate" not in line)
    text = text.replace(
        "http {",
        f"http {{\n access_log off; client_body_temp_path {tmp_path}/b; proxy_temp_path {tmp_path}/p;"
        f" fastcgi_temp_path {tmp_path}/f; uwsgi_temp_path {tmp_path}/u; scgi_temp_path {tmp_path}/s;",
    )
    config = tmp_path / "nginx.conf"
    config.write_text(f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/log; master_process off;\n{text}")
    run = subprocess.Popen([nginx, "-c", str(config), "-p", str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, verify=False) as client:
            helpers.until(lambda: answers(client))
            answer = client.post("/v1/assess", json={"rows": [helpers.row]})
            assert answer.json()["recorded"] is True
            named = client.get("/healthz", headers={"x-request-id": "mine"})
            assert named.headers["x-request-id"] == "mine"
            own = client.get("/healthz", headers={"origin": f"http://127.0.0.1:{port}"})  # as a page of the service
            assert own.status_code == 200
            found = [client.get("/healthz").status_code for _ in range(400)]
        assert {200, 429} == set(found)
        assert len(answer.headers["x-request-id"]) == 32
    finally:
        run.terminate()
        run.wait(60)


def answers(client):
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
