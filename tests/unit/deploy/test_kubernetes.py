"""Tests of the Kubernetes manifests: the names in them lead somewhere. `make soak-deploy` checks the schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kmigrate.config.load import load
from kmigrate.config.settings import Settings
from tests.command_lines import command_of

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
KUSTOMIZATIONS = sorted(FOLDER.glob("*/kustomization.yaml"))


def documents(*files: Path) -> list[dict[str, Any]]:
    return [each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


BASE = documents(*(path for path in sorted((FOLDER / "base").glob("*.yaml")) if path.name != "kustomization.yaml"))
JOB = documents(FOLDER / "verify" / "job.yaml")
WORKLOADS = [each for each in (*BASE, *JOB) if each["kind"] in {"StatefulSet", "Deployment", "Job"}]
each_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda each: each["metadata"]["name"])


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (each for each in BASE if each["kind"] == kind)


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def pod_labels(workload: dict[str, Any]) -> dict[str, str]:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert isinstance(labels, dict)
    return labels


def configuration(folder: Path, environment: dict[str, str]) -> Settings:
    """Load the pods' configuration, with secrets in a folder of the test."""
    for name in ("source-password", "target-password"):
        (folder / name).write_text("secret\n", encoding="utf-8")
    text = (FOLDER / "base" / "kmigrate.toml").read_text(encoding="utf-8")
    file = folder / "kmigrate.toml"
    file.write_text(text.replace("/etc/kmigrate/secrets", str(folder)), encoding="utf-8")
    return load(file, environment)


@pytest.mark.parametrize("file", KUSTOMIZATIONS, ids=lambda file: file.parent.name)
def test_a_kustomization_names_files_that_exist_and_all_of_its_folder(file: Path) -> None:
    (kustomization,) = documents(file)
    files = [name for generated in kustomization.get("configMapGenerator", ()) for name in generated["files"]]
    named = [*kustomization["resources"], *files]
    assert all((file.parent / name).exists() for name in named)
    assert {path.name for path in file.parent.iterdir()} == {file.name, *named} - {"../base"}


@each_workload
def test_a_pod_runs_a_command_of_kmigrate(workload: dict[str, Any]) -> None:
    container = container_of(workload)
    assert command_of(container["args"]) == {"verify": "verify"}.get(container["name"], f"{container['name']} run")


@each_workload
def test_a_pod_is_hardened(workload: dict[str, Any]) -> None:
    pod, container = workload["spec"]["template"]["spec"], container_of(workload)
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"cpu", "memory"} == container["resources"]["requests"].keys()


@each_workload
def test_a_pod_mounts_what_the_configuration_names(workload: dict[str, Any], tmp_path: Path) -> None:
    mounts = {mount["mountPath"] for mount in container_of(workload)["volumeMounts"]}
    assert {"/etc/kmigrate/kmigrate.toml", "/etc/kmigrate/secrets", "/tmp", "/var/lib/kmigrate"} == mounts
    volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == "kmigrate-config"
    assert volumes["secrets"]["secret"]["secretName"] == "kmigrate-secrets"
    assert set(configuration(tmp_path, {}).clusters) == {"source", "target"}


def test_pods_log_as_collectors_read(tmp_path: Path) -> None:
    assert configuration(tmp_path, {}).log.format == "json"


@pytest.mark.parametrize("workload", list(of_kind("Deployment")), ids=lambda each: each["metadata"]["name"])
def test_a_deployment_starts_the_new_pod_first(workload: dict[str, Any]) -> None:
    assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


@pytest.mark.parametrize("workload", WORKLOADS[:3], ids=lambda each: each["metadata"]["name"])
def test_the_probes_ask_the_metrics_port(workload: dict[str, Any], tmp_path: Path) -> None:
    container = container_of(workload)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: get["path"] for name, get in paths.items()} == {
        "startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz",
    }  # fmt: skip
    assert all(get["port"] == "metrics" for get in paths.values())
    assert configuration(tmp_path, {}).metrics.listen == f"0.0.0.0:{ports['metrics']}"
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["metrics"])


def test_a_variable_names_only_variables_before_it() -> None:
    """Kubernetes replaces $(NAME) only where NAME stands earlier in the list."""
    known: set[str] = set()
    for variable in container_of(next(of_kind("StatefulSet")))["env"]:
        assert set(re.findall(r"\$\((\w+)\)", variable.get("value", ""))) <= known
        known.add(variable["name"])


def test_each_router_has_the_name_and_the_address_of_its_pod(tmp_path: Path) -> None:
    router = next(of_kind("StatefulSet"))
    pod = {"POD_NAME": "kmigrate-router-1", "POD_NAMESPACE": "kmigrate"}
    environment = {
        variable["name"]: re.sub(r"\$\((\w+)\)", lambda name: pod[name[1]], variable["value"])
        for variable in container_of(router)["env"]
        if "value" in variable
    }
    settings = configuration(tmp_path, environment).router
    assert settings.name == "kmigrate-router-1"
    assert settings.advertised_host == "kmigrate-router-1.kmigrate-router.kmigrate.svc"
    headless = {
        service["metadata"]["name"] for service in of_kind("Service") if service["spec"].get("clusterIP") == "None"
    }
    assert headless == {router["spec"]["serviceName"]}


def test_the_overlay_for_clients_outside_changes_the_address_of_the_same_variable() -> None:
    (overlay,) = documents(FOLDER / "external" / "kustomization.yaml")
    check, change = yaml.safe_load(overlay["patches"][0]["patch"])
    number, key = change["path"].split("/")[-2:]
    variable = container_of(next(of_kind("StatefulSet")))["env"][int(number)]
    assert (variable["name"], key) == (check["value"], "value")
    replicas = next(of_kind("StatefulSet"))["spec"]["replicas"]
    pods = [each["spec"]["selector"] for each in documents(FOLDER / "external" / "load-balancers.yaml")]
    assert pods == [{"statefulset.kubernetes.io/pod-name": f"kmigrate-router-{number}"} for number in range(replicas)]


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget"])
def test_a_selector_finds_pods(kind: str) -> None:
    for each in of_kind(kind):
        selector = each["spec"]["selector"].get("matchLabels", each["spec"]["selector"])
        assert any(selector.items() <= pod_labels(workload).items() for workload in WORKLOADS)


def test_each_part_has_a_budget_of_disruptions_and_a_second_pod() -> None:
    budgets = {
        each["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        for each in of_kind("PodDisruptionBudget")
    }
    assert budgets == {"router", "mirror", "controller"}
    assert all(workload["spec"]["replicas"] == 2 for workload in WORKLOADS if workload["kind"] != "Job")


def test_the_network_policy_lets_clients_reach_each_listener_of_a_router(tmp_path: Path) -> None:
    settings = configuration(tmp_path, {}).router
    policy = next(each for each in of_kind("NetworkPolicy") if each["metadata"]["name"] == "kmigrate-router")
    open_ports = {
        number
        for port in policy["spec"]["ingress"][0]["ports"]
        for number in range(port["port"], port.get("endPort", port["port"]) + 1)
    }
    assert settings.port in open_ports
    assert isinstance(settings.broker_ports, int), "the manifests count the ports"
    assert set(range(settings.broker_ports, settings.broker_ports + 200)) <= open_ports
    assert set(range(settings.fallback_ports, settings.fallback_ports + 100)) <= open_ports
    assert settings.broker_ports + 200 <= settings.fallback_ports


def test_a_router_has_time_to_close() -> None:
    """A router closes within 3 s; before that, the bootstrap service has to forget the pod."""
    router = next(of_kind("StatefulSet"))
    pause = int(container_of(router)["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause + 3 < router["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
