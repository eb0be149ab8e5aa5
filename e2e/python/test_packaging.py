"""The files in dist/ that packages are made of, as far as they can be held to the truth without a package."""
import os
import re
import shutil
import subprocess
import sys

from harness import ROOT, run

DIST = os.path.join(ROOT, "dist")


def read(name):
    with open(os.path.join(DIST, name)) as f:
        return f.read()


def test_the_packaged_configuration_is_valid_and_says_the_defaults():
    config = os.path.join(DIST, "homing.toml")
    # its state folder is the service manager's to make
    code, out, err = run("check", "--config", config, HOMING_AFFINITY__SNAPSHOT="")
    assert code == 0, err
    # What it spells out is what would be without it, so that nobody takes the file for a choice of ours.
    _, plain, _ = run("check")
    spelled = dict.fromkeys(re.findall(r'^listen = "(\S+)"', read("homing.toml"), re.M))
    assert list(spelled) == re.findall(r'^listen = "(\S+)"', plain, re.M) != [], (spelled, plain)
    # With an engine of its examples it is one that serves.
    text = re.sub(r"^# (\[\[workers\]\]|id = |url = )", r"\1", read("homing.toml"), flags=re.M)
    made = text.replace("/var/lib/homing/sessions.snapshot", "")
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"homing-packaged-{os.getpid()}.toml")
    with open(path, "w") as f:
        f.write(made)
    try:
        code, out, err = run("check", "--config", path)
        assert code == 0 and 'url = "http://10.0.0.1:8000"' in out, (err, out)
    finally:
        os.unlink(path)


def test_the_man_page_names_every_command():
    page = read("homing.1")
    _, out, _ = run("--help")
    commands = re.findall(r"^  (\w+)  ", out[out.index("Commands:"):out.index("Options:")], re.M)
    assert len(commands) > 5, out
    sections = page[page.index(".SH COMMANDS"):page.index(".SH ENVIRONMENT")]
    assert sorted(re.findall(r"^\.B (\w+)$", sections, re.M)) == sorted(commands)


def test_the_unit_waits_for_streams_and_is_not_restarted_for_nothing():
    unit = read("systemd/homing.service")
    _, out, _ = run("check", "--worker", "http://127.0.0.1:1")

    def seconds(key):
        value, unit_of = re.search(rf'^{key} = "(\d+)(\w+)"', out, re.M).groups()
        return int(value) * {"s": 1, "m": 60, "h": 3600}[unit_of]

    waits = int(re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.M).group(1))
    assert waits > seconds("shutdown_delay") + seconds("shutdown_grace"), (waits, out)
    assert "RestartPreventExitStatus=2\n" in unit and "ExecReload=/bin/kill -HUP $MAINPID\n" in unit


def test_the_dockerfile():
    """hadolint's opinion, and what it has none of: the health check's own command, on a real shell."""
    hadolint = os.path.join(os.path.dirname(sys.executable), "hadolint")
    done = subprocess.run([hadolint, os.path.join(DIST, "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    text = read("Dockerfile")
    for line in (r"^USER 10001", r"^HEALTHCHECK ", r"^ENTRYPOINT \[", r"^FROM debian:\S+-slim$"):
        assert re.search(line, text, re.M), line
    for source in re.findall(r"^COPY (?!--from)(\S+) ", text, re.M):
        assert os.path.exists(os.path.join(ROOT, source)), source


def test_the_scripts_of_the_package_are_plain_shell():
    for name in ("postinst", "prerm", "postrm"):
        path = os.path.join(DIST, "debian", name)
        assert os.access(path, os.X_OK), name
        for shell in filter(shutil.which, ("dash", "sh")):
            assert subprocess.run([shell, "-n", path]).returncode == 0, (shell, name)
