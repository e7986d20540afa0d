"""The chart offline, with the real helm: it lints, refuses wrong values by path, and renders what its values say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.settings import Settings as ControllerSettings
from extender.settings import Settings as ExtenderSettings

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
Objects = Callable[..., list[dict[str, Any]]]


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == f"wholenode-{name}"]
    return found


def scheduler_config(objects: list[dict[str, Any]]) -> dict[str, Any]:
    text = one(objects, "ConfigMap", "scheduler-config")["data"]["scheduler-config.yaml"]
    config: dict[str, Any] = yaml.safe_load(text)
    return config


TLS = (
    'extender.tls.secretName="extender-tls"',
    "extender.tls.clientCA=true",
    'scheduler.tls={"caFile": "/pki/ca.crt", "certFile": "/pki/client.crt", "keyFile": "/pki/client.key"}',
)


def test_lint_strict(helm: Callable[..., Any]) -> None:
    run = helm("lint", "--strict", str(CHART))
    assert run.returncode == 0, run.stdout + run.stderr
    assert "WARNING" not in run.stdout


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ('extender.replicas="two"', "/extender/replicas"),
        ("controller.replicas=-1", "/controller/replicas"),
        ("replicas=2", "replicas"),
        ("extender.replica=2", "replica"),
        ('image.tag="latest"', "/image/tag"),
        ('scheduler.managedResources=["nvidia.com/gpu", "nvidia.com/gpu"]', "/scheduler/managedResources"),
        ("scheduler.managedResources=[]", "/scheduler/managedResources"),
        ('scheduler.managedResources=["gpu"]', "/scheduler/managedResources/0"),
        ('scheduler.urlPrefix="extender:8080"', "/scheduler/urlPrefix"),
        ('scheduler.httpTimeout="soon"', "/scheduler/httpTimeout"),
        ('admission.failurePolicy="Maybe"', "/admission/failurePolicy"),
        ('extender.settings={"lower-case": "x"}', "/extender/settings"),
        ("podSecurityContext.runAsNonRoot=false", "/podSecurityContext/runAsNonRoot"),
        ("podSecurityContext.runAsUser=0", "/podSecurityContext/runAsUser"),
        ("securityContext.readOnlyRootFilesystem=false", "/securityContext/readOnlyRootFilesystem"),
        ("securityContext.capabilities.drop=[]", "/securityContext/capabilities/drop"),
        ('extender.tolerations=[{"kee": "gpu"}]', "/extender/tolerations/0"),
    ],
)
def test_wrong_values_are_refused_by_path(template: Callable[..., Any], setting: str, place: str) -> None:
    run = template(setting)
    assert run.returncode != 0
    assert place in run.stderr


def test_every_value_has_a_schema_without_gaps() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(node: dict[str, Any], value: Any, path: str) -> None:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].removeprefix("#/$defs/")]
        if node.get("type") == "object" and "properties" in node:
            assert node["additionalProperties"] is False, path
            for key, inner in value.items():
                compare(node["properties"][key], inner, f"{path}.{key}")

    compare(schema, values, "values")


def test_two_programs_from_one_image_locked_down(rendered: Objects) -> None:
    objects = rendered()
    images = set()
    for name in ("extender", "controller"):
        spec = one(objects, "Deployment", name)["spec"]
        pod = spec["template"]["spec"]
        [container] = pod["containers"]
        images.add(container["image"])
        assert spec["replicas"] == 2
        assert container["command"] == ["python", "-m", name]
        assert pod["serviceAccountName"] == f"wholenode-{name}"
        assert pod["schedulerName"] == "default-scheduler"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 65532
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        ports = {port["name"] for port in container["ports"]}
        assert container["readinessProbe"]["httpGet"]["port"] in ports
        assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert images == {"wholenode:0.1.0"}


def test_settings_become_environment(rendered: Objects) -> None:
    objects = rendered('extender.settings={"LOG_LEVEL": "debug", "QPS": 50}', 'image.digest="sha256:' + "a" * 64 + '"')
    [container] = one(objects, "Deployment", "extender")["spec"]["template"]["spec"]["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["WHOLENODE_LOG_LEVEL"] == "debug"
    assert env["WHOLENODE_QPS"] == "50"
    assert env["WHOLENODE_PORT"] == "8080"
    assert container["image"] == "wholenode@sha256:" + "a" * 64


def test_a_single_replica_has_no_disruption_budget(rendered: Objects) -> None:
    kinds = [each["kind"] for each in rendered("extender.replicas=1", "controller.replicas=1")]
    assert "PodDisruptionBudget" not in kinds


def test_tls_moves_probes_to_a_port_that_asks_for_no_certificate(rendered: Objects) -> None:
    objects = rendered(*TLS, "serviceMonitor.enabled=true")
    pod = one(objects, "Deployment", "extender")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"https": 9443, "health": 8081}
    assert {container[f"{probe}Probe"]["httpGet"]["port"] for probe in ("liveness", "readiness", "startup")} == {
        "health"
    }
    assert {"name": "tls", "secret": {"secretName": "extender-tls"}} in pod["volumes"]
    monitor = one(objects, "ServiceMonitor", "extender")["spec"]
    assert monitor["endpoints"][0]["port"] == "health"
    service = one(objects, "Service", "extender")["spec"]
    assert {port["name"]: port["port"] for port in service["ports"]} == {"https": 9443, "health": 8081}


def test_service_monitors_select_ports_that_their_services_have(rendered: Objects) -> None:
    assert "ServiceMonitor" not in [each["kind"] for each in rendered()]
    objects = rendered("serviceMonitor.enabled=true", 'serviceMonitor.labels={"release": "prometheus"}')
    for name in ("extender", "controller"):
        monitor, service = one(objects, "ServiceMonitor", name), one(objects, "Service", name)
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= {p["name"] for p in service["spec"]["ports"]}


def test_scheduler_configuration(rendered: Objects) -> None:
    config = scheduler_config(rendered())
    assert config["percentageOfNodesToScore"] == 100
    assert (config["podInitialBackoffSeconds"], config["podMaxBackoffSeconds"]) == (1, 2)
    assert config["extenders"] == [
        {
            "urlPrefix": "http://wholenode-extender.wholenode-system.svc.cluster.local:8080/v1",
            "filterVerb": "filter",
            "preemptVerb": "preempt",
            "nodeCacheCapable": True,
            "ignorable": False,
            "httpTimeout": "1s",
            "managedResources": [{"name": "nvidia.com/gpu", "ignoredByScheduler": False}],
        }
    ]


def test_packing_by_scores_asks_a_second_verb(rendered: Objects) -> None:
    objects = rendered('extender.packing="scores"')
    [extender] = scheduler_config(objects)["extenders"]
    assert (extender["prioritizeVerb"], extender["weight"]) == ("prioritize", 130)


def test_next_to_hami_no_resource_is_managed_twice(rendered: Objects) -> None:
    [extender] = scheduler_config(rendered("scheduler.nextToHAMi=true"))["extenders"]
    assert "managedResources" not in extender


def test_scheduler_configuration_with_tls(rendered: Objects) -> None:
    [extender] = scheduler_config(rendered(*TLS))["extenders"]
    assert extender["urlPrefix"].startswith("https://wholenode-extender.wholenode-system.svc.cluster.local:9443/")
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {
        "caFile": "/pki/ca.crt",
        "certFile": "/pki/client.crt",
        "keyFile": "/pki/client.key",
    }


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (['extender.tls.secretName="t"'], "scheduler.tls.caFile is needed with https"),
        (['scheduler.urlPrefix="https://e:1"'], "scheduler.tls.caFile is needed with https"),
        (['extender.tls.secretName="t"', 'scheduler.urlPrefix="http://e:1"'], "must begin with https://"),
        ([*TLS[:2], 'scheduler.tls.caFile="/ca"'], "scheduler.tls.certFile and scheduler.tls.keyFile are needed"),
        (["extender.tls.clientCA=true"], "extender.tls.secretName is needed"),
    ],
)
def test_half_a_tls_setting_is_refused_in_clear_words(
    template: Callable[..., Any], settings: list[str], words: str
) -> None:
    run = template(*settings)
    assert run.returncode != 0
    assert words in run.stderr


def test_an_old_cluster_is_told_to_do_without_the_policy(template: Callable[..., Any]) -> None:
    old = template(kube_version="v1.35.0")
    assert old.returncode != 0
    assert "admission.enabled=false" in old.stderr
    without = template("admission.enabled=false", kube_version="v1.35.0")
    assert without.returncode == 0, without.stderr
    assert "MutatingAdmissionPolicy" not in without.stdout


def test_roles_have_no_wildcard_and_nobody_may_delete_pods(rendered: Objects) -> None:
    roles = [each for each in rendered() if each["kind"] in {"Role", "ClusterRole"}]
    assert len(roles) == 7
    for role in roles:
        for rule in role["rules"]:
            assert not any("*" in text for words in rule.values() for text in words), role["metadata"]["name"]
            assert not ("delete" in rule["verbs"] and "pods" in rule["resources"])
            assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])
    [extender] = [each for each in roles if each["metadata"]["name"] == "wholenode-extender"]
    assert {verb for rule in extender["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_every_template_says_what_is_in_it() -> None:
    for path in (CHART / "templates").iterdir():
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("{{- /*") or path.name == "NOTES.txt"


@pytest.mark.parametrize(
    ("name", "settings", "known"),
    [
        ("controller", (), ControllerSettings.model_fields),
        ("extender", (), ExtenderSettings.model_fields),
        ("extender", TLS, ExtenderSettings.model_fields),
    ],
)
def test_the_environment_is_what_the_program_reads(
    rendered: Objects, name: str, settings: tuple[str, ...], known: dict[str, Any]
) -> None:
    [container] = one(rendered(*settings), "Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} <= {f"WHOLENODE_{field.upper()}" for field in known}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            "extender: {podLabels: {app.kubernetes.io/component: web}}",
            "extender.podLabels: app.kubernetes.io/component",
        ),
        ("controller: {settings: {PORT: 9000}}", "controller.settings.PORT: the chart sets WHOLENODE_PORT itself"),
        ("fullnameOverride: Foo_Bar", "/fullnameOverride"),
    ],
)
def test_values_that_would_render_something_broken_are_refused(
    helm: Callable[..., Any], tmp_path: Path, values: str, words: str
) -> None:
    run = from_file(helm, tmp_path, values)
    assert run.returncode != 0
    assert words in run.stderr


def test_figures_and_names_of_a_values_file_arrive_as_they_are_written(
    helm: Callable[..., Any], tmp_path: Path
) -> None:
    """A large number is a float to Helm; a namespace may be called on, or 123."""
    values = """
extender: {settings: {MAX_BODY_BYTES: 33554432, RATE: 0.5}, priorityClassName: "123"}
admission: {excludedNamespaces: ["on", "123"]}
"""
    run = from_file(helm, tmp_path, values)
    assert run.returncode == 0, run.stderr
    objects = [each for each in yaml.safe_load_all(run.stdout) if each]
    (extender,) = [
        one for one in objects if one["metadata"]["name"] == "wholenode-extender" and one["kind"] == "Deployment"
    ]
    pod = extender["spec"]["template"]["spec"]
    env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert (env["WHOLENODE_MAX_BODY_BYTES"], env["WHOLENODE_RATE"], pod["priorityClassName"]) == (
        "33554432",
        "0.5",
        "123",
    )
    (policy,) = [one for one in objects if one["kind"] == "MutatingAdmissionPolicy"]
    (left_out,) = policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert {"on", "123"} <= set(left_out["values"])


def from_file(helm: Callable[..., Any], tmp_path: Path, values: str) -> Any:
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    flags = ("--namespace", "team", "--kube-version", "v1.37.2", "-f", str(file))
    return helm("template", "wholenode", str(CHART), *flags)
