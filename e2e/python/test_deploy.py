"""The manifests of docs/deploy, as far as they can be held to the truth without a cluster: they are YAML, what they name
exists in them, and what they say of the binary is so."""
import glob
import json
import os
import re
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

from harness import ROOT, Mock, Server, call, eventually, run

HERE = os.path.join(ROOT, "docs", "deploy", "kubernetes")


class Strict(yaml.SafeLoader):
    """A key that is there twice is a slip, which YAML itself doesn't mind."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key) for key, _ in node.value]
        assert len(set(keys)) == len(keys), f"{node.start_mark}: a key twice in {keys}"
        return super().construct_mapping(node, deep)


def objects():
    """Every object of every file, by kind and name."""
    found = {}
    for path in sorted(glob.glob(os.path.join(HERE, "*.yaml"))):
        with open(path) as f:
            for each in yaml.load_all(f, Loader=Strict):
                key = each["kind"], each["metadata"]["name"]
                assert key not in found and each["apiVersion"], key
                found[key] = each
    return found


def container(found, name):
    [one] = found["Deployment", name]["spec"]["template"]["spec"]["containers"]
    return one


def config():
    return objects()["ConfigMap", "homing"]["data"]["homing.toml"]


def seconds(checked, key):
    value, unit = re.search(rf'^{key} = "(\d+)(\w+)"', checked, re.M).groups()
    return int(value) * {"s": 1, "m": 60, "h": 3600}[unit]


def test_what_the_manifests_name_is_there():
    found = objects()
    for name in ("homing", "vllm"):
        deployment, service = found["Deployment", name]["spec"], found["Service", name]["spec"]
        labels = deployment["template"]["metadata"]["labels"]
        for selector in (deployment["selector"]["matchLabels"], service["selector"]):
            assert selector.items() <= labels.items(), (name, selector, labels)
        ports = {port["name"]: port["containerPort"] for port in container(found, name)["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= ports.keys(), (name, service)
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            if probe := container(found, name).get(kind):
                assert probe["httpGet"]["port"] in ports, (name, kind)
    budget = found["PodDisruptionBudget", "homing"]["spec"]["selector"]["matchLabels"]
    assert budget == found["Deployment", "homing"]["spec"]["selector"]["matchLabels"]
    binding = found["RoleBinding", "homing"]
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in found
    [subject] = binding["subjects"]
    assert (subject["kind"], subject["name"]) in found
    pod = found["Deployment", "homing"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == subject["name"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(found, "homing")["volumeMounts"]}
    assert mounts.keys() == volumes.keys()
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in found
    assert container(found, "homing")["args"] == ["serve", "--config", f"{mounts['config']}/homing.toml"]
    # The files of the configuration are keys of the secret that the guide makes.
    with open(os.path.join(HERE, "..", "kubernetes.md")) as f:
        guide = f.read()
    files = re.findall(rf'"{mounts["secret"]}/(\S+)"', config())
    assert sorted(files) == sorted(re.findall(r"--from-literal=([a-z-]+)=", guide)) != []
    assert f"create secret generic {volumes['secret']['secret']['secretName']} " in guide
    for name in re.findall(r"\(kubernetes/(\S+\.yaml)\)", guide):
        assert os.path.exists(os.path.join(HERE, name)), name


def test_the_engines_are_those_that_are_looked_for():
    found, text = objects(), config()
    service = re.search(r'^service = "(\S+)"', text, re.M).group(1)
    port = re.search(r'^port = "(\S+)"', text, re.M).group(1)
    assert port in {each["name"] for each in found["Service", service]["spec"]["ports"]}
    args = dict(arg[2:].split("=", 1) for arg in container(found, "vllm")["args"])
    assert int(args["port"]) in {each["containerPort"] for each in container(found, "vllm")["ports"]}
    assert f'name = "{args["model"]}"' in text
    events = json.loads(args["kv-events-config"])
    assert events["enable_kv_cache_events"] and events["publisher"] == "zmq"


def test_ports_probes_and_times_are_those_of_the_binary():
    found = objects()
    code, checked, err = run("check", "--worker", "http://127.0.0.1:1")
    assert code == 0, err
    deployment = found["Deployment", "homing"]["spec"]["template"]["spec"]
    grace = deployment["terminationGracePeriodSeconds"]
    assert grace > seconds(checked, "shutdown_delay") + seconds(checked, "shutdown_grace")
    ports = {port["name"]: port["containerPort"] for port in container(found, "homing")["ports"]}
    by_default = [int(port) for port in re.findall(r'^listen = "\S+:(\d+)"', checked, re.M)]
    written = [int(port) for port in re.findall(r'^\s*listen = "\S+:(\d+)"', config(), re.M)]
    assert [ports["http"], ports["admin"]] == by_default == written
    with open(os.path.join(ROOT, "dist", "Dockerfile")) as f:
        user = int(re.search(r"^USER (\d+)", f.read(), re.M).group(1))
    assert deployment["securityContext"]["runAsUser"] == user
    assert container(found, "homing")["securityContext"]["readOnlyRootFilesystem"]


class Cluster(BaseHTTPRequestHandler):
    """An API server with one slice of one pod; what was asked for is kept."""
    asked = []
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.asked.append((self.path, self.headers["authorization"]))
        if "watch=1" in self.path:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.server.over.wait()
            return
        if self.path.split("?")[0].endswith("/endpointslices"):
            endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": True},
                        "targetRef": {"kind": "Pod", "name": "vllm-0", "uid": "u"}}
            slice_ = {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [endpoint],
                      "ports": [{"name": "http", "port": self.server.engine}]}
            body = {"metadata": {"resourceVersion": "1"}, "items": [slice_]}
        else:
            body = {"metadata": {"name": "vllm-0", "uid": "u", "labels": {"app": "vllm"}}}
        body = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_the_configuration_serves_what_a_cluster_lists():
    """That of the ConfigMap, with files and ports of the test's: probes, discovery, and rights that are enough."""
    found = objects()
    with tempfile.TemporaryDirectory(prefix="homing-deploy-") as folder, Mock() as mock:
        for name, text in (("session-key", "5a" * 32), ("admin-tokens", "operate:" + "7c" * 16), ("token", "account")):
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
            os.chmod(os.path.join(folder, name), 0o600)
        api = ThreadingHTTPServer(("127.0.0.1", 0), Cluster)
        api.daemon_threads, api.over, api.engine = True, threading.Event(), mock.port
        threading.Thread(target=api.serve_forever, daemon=True).start()
        try:
            text = config().replace("/etc/homing/secret/", f"{folder}/")
            text = re.sub(r'listen = "0.0.0.0:\d+"', 'listen = "127.0.0.1:0"', text)
            text = text.replace("[discovery]\n", f'[discovery]\nurls = ["http://127.0.0.1:{api.server_port}"]\n'
                                f'token_file = "{folder}/token"\nnamespace = "llm"\n')
            path = os.path.join(folder, "homing.toml")
            with open(path, "w") as f:
                f.write(text)
            with Server("serve", "--config", path) as router:
                port = router.address("gateway on")
                probes = container(found, "homing")
                live, ready = (probes[kind]["httpGet"]["path"] for kind in ("livenessProbe", "readinessProbe"))
                assert call(port, "GET", live)[0] == 200
                eventually(lambda: call(port, "GET", ready)[0] == 200, "readiness")
                models = json.loads(call(port, "GET", "/v1/models")[2])["data"]
                assert [model["id"] for model in models] == [mock.get("/v1/models")["data"][0]["id"]]
        finally:
            api.over.set()
            api.shutdown()
    rules = found["Role", "homing"]["rules"]

    def allowed(group, resource, verb):
        return any(group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
                   for rule in rules)

    assert {token for _, token in Cluster.asked} == {"Bearer account"}
    for asked, _ in Cluster.asked:
        path, _, query = asked.partition("?")
        group = re.match(r"/apis/([^/]+)/", path)
        resource, name = re.search(r"/namespaces/llm/(\w+)(/\S+)?$", path).groups()
        verb = "watch" if "watch=1" in query else "get" if name else "list"
        assert allowed(group.group(1) if group else "", resource, verb), (asked, rules)
    assert any("watch=1" in asked for asked, _ in Cluster.asked)
