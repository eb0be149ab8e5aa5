"""Looks at the packages that `cargo xtask dist` has made: what is in them, and whether that works where it is put.

    python check_packages.py FOLDER

Nothing is installed: the package is laid out in a folder of its own. A check is a function that raises.
"""
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

CONFIG = "/etc/homing/homing.toml"
UNIT = "/usr/lib/systemd/system/homing.service"


def output(*args, **more):
    done = subprocess.run(args, capture_output=True, text=True, **more)
    assert done.returncode == 0, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout


def only(folder, pattern):
    found = glob.glob(os.path.join(folder, pattern))
    assert len(found) == 1, (pattern, os.listdir(folder))
    return found[0]


def check_the_sums(folder):
    with open(os.path.join(folder, "SHA256SUMS")) as f:
        sums = dict(reversed(line.split()) for line in f)
    assert sorted(sums) == sorted(name for name in os.listdir(folder) if name != "SHA256SUMS"), sums
    for name, told in sums.items():
        with open(os.path.join(folder, name), "rb") as f:
            assert hashlib.sha256(f.read()).hexdigest() == told, name


def check_the_deb(folder):
    deb = only(folder, "homing_*.deb")
    fields = dict(re.findall(r"^ ([A-Z][\w-]+): (.*)$", output("dpkg-deb", "--info", deb), re.M))
    assert fields["Package"] == "homing" and fields["Version"], fields
    assert re.search(r"libc6 \(>= 2\.\d+\)", fields["Depends"]) and "libstdc++6" in fields["Depends"], fields
    assert "@" not in fields["Version"] + fields["Depends"] + fields["Architecture"], fields
    assert int(fields["Installed-Size"]) > 1000, fields
    listed = [line.split(None, 5) for line in output("dpkg-deb", "--contents", deb).splitlines()]
    for mode, owner, *_ in listed:
        assert owner == "root/root" and mode[1:] in ("rwxr-xr-x", "rw-r--r--"), (mode, owner)
    names = {line[5].removeprefix(".") for line in listed}
    for name in ("/usr/bin/homing", CONFIG, UNIT, "/usr/share/man/man1/homing.1.gz", "/usr/share/doc/homing/copyright",
                 "/usr/share/doc/homing/configuration.md", "/usr/share/homing/grafana/homing.json",
                 "/usr/share/homing/prometheus/homing.rules.yml"):
        assert name in names, (name, sorted(names))


def check_the_deb_laid_out(folder):
    deb = only(folder, "homing_*.deb")
    with tempfile.TemporaryDirectory(prefix="homing-deb-") as root:
        output("dpkg-deb", "--raw-extract", deb, root)
        at = root.__add__
        with open(at("/DEBIAN/conffiles")) as f:
            assert f.read().split() == [CONFIG]
        for script in ("postinst", "prerm", "postrm"):
            assert os.access(at(f"/DEBIAN/{script}"), os.X_OK), script
        output("md5sum", "--check", "--quiet", "DEBIAN/md5sums", cwd=root)
        binary = at("/usr/bin/homing")
        version = output(binary, "--version").split()[1]
        assert f"homing_{version}_" in deb, (version, deb)
        # The state folder is the service manager's to make.
        state = at("/var/lib/homing")
        os.makedirs(state)
        told = output(binary, "check", "--config", at(CONFIG),
                      env={"HOMING_AFFINITY__SNAPSHOT": state + "/sessions.snapshot"})
        assert "[gateway]" in told and "snapshot" in told, told
        page = output("gzip", "-dc", at("/usr/share/man/man1/homing.1.gz"))
        assert page.startswith(f'.TH HOMING 1 "" "homing {version}"'), page[:80]
        with open(at("/usr/share/homing/grafana/homing.json")) as f:
            assert json.load(f)["title"] == "Homing"
        if shutil.which("systemd-analyze"):
            check_the_unit(root)
        else:
            print("systemd-analyze is not here: the unit is not verified")


def check_the_unit(root):
    """systemd's own opinion, in a root that has what a unit may take for granted."""
    for target in ("sysinit", "basic", "shutdown", "network-online", "multi-user"):
        with open(f"{root}{os.path.dirname(UNIT)}/{target}.target", "w") as f:
            f.write("[Unit]\n")
    os.makedirs(root + "/bin")
    shutil.copy(root + "/usr/bin/homing", root + "/bin/kill")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", f"--root={root}", UNIT],
                          capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr.strip(), done.stderr


def check_the_archive(folder):
    packed = only(folder, "homing-*-linux-*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="homing-tar-") as root:
        output("tar", "-xzf", packed, "-C", root)
        (name,) = os.listdir(root)
        inside = os.path.join(root, name)
        for wanted in ("homing", "homing.toml", "homing.service", "homing.1", "LICENSE", "NOTICE", "README.md",
                       "docs/operations.md", "grafana/homing.json", "prometheus/homing.rules.yml"):
            assert os.path.exists(os.path.join(inside, wanted)), wanted
        version = output(os.path.join(inside, "homing"), "--version").split()[1]
        assert name == f"homing-{version}", (name, version)
        output(os.path.join(inside, "homing"), "check", "--config", os.path.join(inside, "homing.toml"),
               env={"HOMING_AFFINITY__SNAPSHOT": ""})


def main(folder):
    for check in (check_the_sums, check_the_deb, check_the_deb_laid_out, check_the_archive):
        check(folder)
        print(f"ok    {check.__name__}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
