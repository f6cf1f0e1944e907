# SPDX-License-Identifier: Apache-2.0
"""Builds and runs the tests of the Rust crates: run.py CARGO WHAT [NAME]...

WHAT: build, doc, clippy, pkg-config, crates, check, or test, for the file NAME

All that cargo writes is in the build: the crates are linked into a workspace there, whose Cargo.lock
and target directory are its own. What they depend on comes from Debian's packages (librust-*-dev),
so nothing is fetched, and is the same each time.

Each test runs in a process of its own. What is missing is said in the words of GoogleTest, which
scripts/test_summary.py reads.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SOURCE = pathlib.Path(os.environ["FARCALL_SOURCE"])
BUILD = pathlib.Path(os.environ["FARCALL_BUILD"])
REGISTRY = pathlib.Path("/usr/share/cargo/registry")
CONFIG = f"""
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "{REGISTRY}"
[net]
offline = true
# Lines are enough for backtraces.
[profile.dev]
debug = 1
[profile.dev.package."*"]
debug = false
"""
FEATURES = ["--features", "farcall/tokio,farcall/messages,farcall-sys/messages"]
PAGES = ["README.md", "docs/guide/rust.md"]
SECONDS_OF_A_TEST = 240


class Workspace:
    """The crates in the build, for one cargo."""

    def __init__(self, cargo):
        self.cargo = pathlib.Path(cargo)
        debian = self.cargo.parent == pathlib.Path("/usr/bin")
        self.path = BUILD / "rust" / ("debian" if debian else "other")
        home = self.path / "home"
        home.mkdir(parents=True, exist_ok=True)
        config = home / "config.toml"
        if not config.exists() or config.read_text() != CONFIG:
            config.write_text(CONFIG)
        for name in ("Cargo.toml", "farcall", "farcall-sys"):
            link = self.path / name
            if not link.is_symlink():
                link.symlink_to(SOURCE / "bindings/rust" / name)
        library = f"{BUILD}/bindings/c:{BUILD}/src/message"
        self.environment = {
            **os.environ, "PATH": f"{self.cargo.parent}:{os.environ['PATH']}",
            "CARGO_HOME": str(home), "CARGO_TARGET_DIR": str(self.path / "target"),
            "CARGO_BUILD_JOBS": "2", "CARGO_TERM_COLOR": "never",
            "FARCALL_LIB_DIR": library, "FARCALL_INCLUDE_DIR": str(SOURCE / "include"),
            "LD_LIBRARY_PATH": library, "RUST_BACKTRACE": "1",
            # The same for all steps: others would build everything again.
            "RUSTFLAGS": "-D warnings", "RUSTDOCFLAGS": "-D warnings",
        }
        # The compiler beside it, not the first one of the path.
        for variable, program in (("RUSTC", "rustc"), ("RUSTDOC", "rustdoc")):
            self.environment[variable] = str(self.cargo.parent / program)

    def run(self, *arguments, **options):
        return subprocess.run([str(self.cargo), *arguments], cwd=self.path, env=self.environment,
                              check=False, **options)

    def build(self):
        """Everything, with warnings as errors; keeps note of the tests and examples that it makes."""
        done = self.run("test", "--no-run", "--workspace", *FEATURES,
                        "--message-format=json-render-diagnostics",
                        stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.returncode
        executables, libraries = {}, {}
        for line in done.stdout.splitlines():
            message = json.loads(line)
            for file in message.get("filenames", []):
                if file.endswith(".rlib"):
                    libraries[message["target"]["name"]] = file
            if message.get("executable"):
                target = message["target"]
                kind = target["kind"][0]
                name = target["name"] if kind != "lib" else "lib-" + target["name"]
                executables[name] = message["executable"]
        (self.path / "executables.json").write_text(json.dumps(executables))
        (self.path / "libraries.json").write_text(json.dumps(libraries))
        return 0

    def executables(self):
        return json.loads((self.path / "executables.json").read_text())

    def tests(self, name):
        """Runs the tests of one file, each in a process of its own."""
        program = self.executables()[name]
        listed = subprocess.run([program, "--list", "--format", "terse"], env=self.environment,
                                stdout=subprocess.PIPE, text=True, check=True)
        tests = [line[:-len(": test")] for line in listed.stdout.splitlines() if line.endswith(": test")]
        if not tests:
            print(f"{name}: there are no tests")
            return 1
        failed = 0
        for test in tests:
            try:
                done = subprocess.run([program, "--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"],
                                      env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      text=True, timeout=SECONDS_OF_A_TEST, check=False)
                good, said = done.returncode == 0 and "1 passed" in done.stdout, done.stdout
            except subprocess.TimeoutExpired as hung:
                good, said = False, (hung.stdout or b"").decode() + "it hangs\n"
            print(f"{'passed' if good else 'FAILED'}  {name}::{test}")
            if not good:
                print(said)
                failed += 1
        return int(failed != 0)

    def documentation(self):
        """Its examples run, as do those of the pages, and rustdoc has nothing to complain about."""
        return (self.run("test", "--doc", "-p", "farcall", *FEATURES).returncode
                or self.run("doc", "--workspace", "--no-deps", *FEATURES).returncode
                or int(any([self.page(page) for page in PAGES])))

    def page(self, page):
        libraries = json.loads((self.path / "libraries.json").read_text())
        deps = pathlib.Path(libraries["libc"]).parent
        externs = [f"--extern={name}={libraries[name]}" for name in ("farcall", "libc", "tokio")]
        done = subprocess.run(
            [self.environment["RUSTDOC"], "--test", "--edition=2021", *externs, f"-Ldependency={deps}",
             f"-Lnative={BUILD / 'bindings/c'}", f"-Lnative={BUILD / 'src/message'}", str(SOURCE / page)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        print(done.stdout)
        return int(done.returncode != 0 or "running 0 tests" in done.stdout)

    def pkg_config(self):
        """A program is built and run with what is laid out as an installation."""
        prefix = self.path / "prefix"
        shutil.rmtree(prefix, ignore_errors=True)
        text = (BUILD / "farcall-c.pc").read_text()
        libdir = re.search(r"^libdir=\$\{prefix\}/(.*)$", text, re.MULTILINE)[1]
        (prefix / libdir / "pkgconfig").mkdir(parents=True)
        (prefix / libdir / "pkgconfig/farcall-c.pc").write_text(text)
        for library in (BUILD / "bindings/c").glob("libfarcall-c.so*"):
            (prefix / libdir / library.name).symlink_to(library)
        self.environment.pop("FARCALL_LIB_DIR")
        self.environment["PKG_CONFIG_PATH"] = str(prefix / libdir / "pkgconfig")
        self.environment["LD_LIBRARY_PATH"] = str(prefix / libdir)
        # Another target directory: the library is found anew.
        self.environment["CARGO_TARGET_DIR"] = str(self.path / "target-pkg-config")
        done = self.run("run", "-p", "farcall-sys", "--example", "version", stdout=subprocess.PIPE, text=True)
        if done.returncode != 0 or not done.stdout.startswith("0."):
            print(done.stdout)
            return 1
        # Where there is none it says what is missing.
        self.environment["PKG_CONFIG_PATH"] = self.environment["PKG_CONFIG_LIBDIR"] = "/nonexistent"
        done = self.run("check", "-p", "farcall-sys", stderr=subprocess.PIPE, text=True)
        print(done.stderr)
        return int(done.returncode == 0 or "FARCALL_LIB_DIR" not in done.stderr)

    def crates(self):
        """They are packed as for a registry, and a program is built of what is in the packages."""
        return subprocess.run([SOURCE / "scripts/crates.sh", BUILD / "bindings/c", self.path / "crates"],
                              env={**os.environ, "CARGO": str(self.cargo)}, check=False).returncode

    def has_clippy(self):
        return (self.cargo.parent / "cargo-clippy").exists()

    def clippy(self):
        if not self.has_clippy():
            return skip("clippy")
        return self.run("clippy", "--workspace", "--all-targets", *FEATURES, "--", "-D", "warnings").returncode

    def check(self):
        """Every target is read and nothing made of it, in a third of the time. A newer compiler has
        more to say of the sources; what they do is tested with the oldest."""
        if self.has_clippy():
            return self.clippy()
        return self.run("check", "--workspace", "--all-targets", *FEATURES).returncode


def skip(what):
    print(f"the crates: Skipped\nthere is no {what} for Rust\n\n[  SKIPPED ] the crates")
    return 0


def main(cargo, what, *names):
    if not cargo or not shutil.which(cargo):
        return skip("cargo")
    if not list(REGISTRY.glob("tokio-1.*")):
        return skip("tokio")
    workspace = Workspace(cargo)
    if what == "test":
        return workspace.tests(*names)
    return {"build": workspace.build, "doc": workspace.documentation, "clippy": workspace.clippy,
            "check": workspace.check, "pkg-config": workspace.pkg_config, "crates": workspace.crates}[what]()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
