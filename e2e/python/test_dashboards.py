"""What is handed to operators speaks of metrics that exist: the Grafana dashboard, the alert rules, docs/metrics.md,
each held against the page of a live router."""
import json
import os
import re
import tempfile
from contextlib import contextmanager

import yaml
from harness import MODEL, ROOT, Mock, Serve, call, eventually, tokenized
from nats_server import Nats

DASHBOARD = os.path.join(ROOT, "dist/grafana/homing.json")
RULES = os.path.join(ROOT, "dist/prometheus/homing.rules.yml")
DOCS = os.path.join(ROOT, "docs")
# What Prometheus adds to every series, and a histogram to its buckets.
ADDED = {"job", "instance"}


@contextmanager
def live_page():
    """The metrics of a router that has had something to do, of every kind that adds a metric."""
    with tempfile.TemporaryDirectory() as folder, Mock() as a, Mock() as b, Nats() as nats:
        key = os.path.join(folder, "key")
        with open(key, "wb") as f:
            f.write(os.urandom(32))
        shares = (f'[affinity]\nkey_file = "{key}"\n[replication]\nbackend = "nats"\nmode = "authoritative"\n'
                  f'urls = ["{nats.url}"]\n')
        with Serve([a, b], extra=tokenized() + shares, gateway=f'record = "{folder}/trace"\n') as router:
            yield _page(router)


def _page(router):
    """Its metrics, once it has had all to do."""
    body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "some words " * 200}]}

    def page():
        for streams in (False, True):
            head = {"x-homing-session-id": f"of {streams}"}
            assert router.post("/v1/chat/completions", body | {"stream": streams}, head)[0] == 200
        text = call(router.admin, "GET", "/metrics")[2].decode()
        # The last of all: it is there once a prediction was compared with an engine's word.
        return text if "homing_cache_prediction_error{" in text else None

    return eventually(page, "a prediction was compared")


def series(page):
    """{name of a sample: its labels} of a page."""
    found = {}
    for name, labels in re.findall(r"^(homing_\w+)(\{.*\})? \S+$", page, re.M):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def check_expression(where, expr, known, legend=""):
    """Names, matched labels, labels that are grouped by, and those of the legend."""
    spoken_of = re.findall(r"(homing_\w+)(?:\{([^}]*)\})?", expr)
    assert spoken_of, (where, expr)
    labels = set()
    for name, matchers in spoken_of:
        assert name in known, f"{where}: there is no {name}"
        labels |= known[name] | ADDED
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in known[name] | ADDED, f"{where}: {name} has no label {label}"
    grouped = [label for group in re.findall(r"\b(?:by|on|without) \(([^)]*)\)", expr)
               for label in re.split(r"[,\s]+", group)]
    assert set(grouped) <= labels, f"{where}: {set(grouped) - labels} in {expr}"
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", legend))
    assert shown <= (set(grouped) if grouped else labels), f"{where}: {shown} in {legend}, of {expr}"


def test_the_dashboard_shows_what_exists():
    with open(DASHBOARD) as f:
        dashboard = json.load(f)
    panels = dashboard["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    rows = [p["title"] for p in panels if p["type"] == "row"]
    assert len(rows) == 9, rows
    with live_page() as page:
        known, shown = series(page), set()
        for panel in panels:
            for target in panel.get("targets", ()):
                check_expression(panel["title"], target["expr"], known, target["legendFormat"])
                shown |= set(re.findall(r"homing_\w+", target["expr"]))
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
                assert label in known[name] | ADDED, variable
        # And all of it: a metric that is on no panel is a panel that is missing.
        families = {base(name, known) for name in known}
        assert families == {base(name, known) for name in shown}, families ^ {base(name, known) for name in shown}


def test_the_alerts_speak_of_what_exists():
    with open(RULES) as f:
        rules = [rule for group in yaml.safe_load(f)["groups"] for rule in group["rules"]]
    with live_page() as page:
        known = series(page)
    with open(os.path.join(DOCS, "operations.md")) as f:
        documented = f.read()
    for rule in rules:
        said = rule["annotations"]["summary"]
        # In Go's templates a pipe may follow; that of a label never does.
        check_expression(rule["alert"], rule["expr"], known, said)
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert f"`{rule['alert']}`" in documented, f"docs/operations.md does not tell of {rule['alert']}"
    assert len({rule["alert"] for rule in rules}) == len(rules)


def base(name, known):
    """Of a histogram's samples its own name."""
    for end in ("_bucket", "_sum", "_count"):
        stem = name.removesuffix(end)
        if stem != name and stem + "_bucket" in known:
            return stem
    return name


def test_every_metric_is_documented_and_every_documented_one_exists():
    with open(os.path.join(DOCS, "metrics.md")) as f:
        rows = re.findall(r"^\| (`homing_\w+`(?:, `homing_\w+`)*) \|([^|]*)\|", f.read(), re.M)
    documented = {name: set(re.split(r",\s*", labels.strip())) - {""}
                  for names, labels in rows for name in re.findall(r"homing_\w+", names)}
    with live_page() as page:
        known = series(page)
    live = {}
    for name, labels in known.items():
        live.setdefault(base(name, known), set()).update(labels - {"le"})
    assert set(live) == set(documented), set(live) ^ set(documented)
    for name, labels in live.items():
        assert documented[name] == labels, (name, documented[name], labels)
