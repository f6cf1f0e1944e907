#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what is in farcall's programs and libraries, as SPDX 2.3 in JSON, to standard output.

Usage: sbom.py --build BUILD_DIR --prefix PREFIX --archive SOURCES.tar.gz [PACKAGE]...

BUILD_DIR is a build with Ninja of these sources, whose dependency log says which headers were read;
PREFIX is its installation. Names and versions are those of Debian's packages that the files belong to.
A PACKAGE is made of the archive for users of Python (.whl, .tar.gz) or Rust (.crate).
SOURCE_DATE_EPOCH is the time that it bears. check_sbom.py tells whether it is right.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import urllib.parse

SOURCES = pathlib.Path(__file__).resolve().parent.parent
LICENSES = "Apache-2.0 AND GPL-2.0-only AND (GPL-2.0-only WITH Linux-syscall-note)"


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def packages_of(paths):
    """The packages that own some files, as (name, version, architecture)."""
    found = set()
    paths = sorted(set(paths))
    for start in range(0, len(paths), 1000):
        owners = subprocess.run(["dpkg-query", "-S", *paths[start:start + 1000]], text=True, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        for line in owners.splitlines():
            owner = line.split(": ")[0]
            if not line.startswith("diversion by"):
                found.update(owner.split(", "))
    if not found:
        return []
    shown = output_of("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n", *found)
    return sorted({tuple(line.split()) for line in shown.splitlines()})


def headers_read(build):
    """All files outside of the sources that the compiler has read."""
    sources = os.path.realpath(re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$",
                                         (build / "CMakeCache.txt").read_text(), re.MULTILINE)[1])
    lines = output_of("ninja", "-C", str(build), "-t", "deps").splitlines()
    paths = {os.path.realpath(build / line.strip()) for line in lines if line.startswith("    ")}
    return [path for path in paths if not path.startswith(sources + "/")]


def compilers(build):
    cache = (build / "CMakeCache.txt").read_text()
    return [os.path.realpath(path)
            for path in re.findall(r"^CMAKE_CX*_COMPILER:\w+=(/.*)$", cache, re.MULTILINE)]


def elf_files(prefix):
    for path in sorted(prefix.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def libraries_needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "--wide", "--dynamic", str(path)))


def places_of_libraries():
    """Where the loader finds libraries, by name; as packages may know the place, with /usr and without."""
    places = {}
    for name, path in re.findall(r"^\s+(\S+) \(.*\) => (\S+)$", output_of("/sbin/ldconfig", "-p"), re.MULTILINE):
        bare = path.removeprefix("/usr")
        places.setdefault(name, [bare, "/usr" + bare])
    return places


def checksum(path, algorithm):
    return {"algorithm": algorithm.upper(),
            "checksumValue": hashlib.new(algorithm, path.read_bytes()).hexdigest()}


def identifier(name):
    return re.sub(r"[^A-Za-z0-9.]", "-", name)


def metadata(path):
    """Name, version, what it needs of its registry with the versions, and what for, as SPDX says it."""
    if path.suffix == ".crate":
        name, version = re.fullmatch(r"(.*)-([0-9.]+)\.crate", path.name).groups()
        table = tomllib.loads((SOURCES / "bindings/rust" / name / "Cargo.toml").read_text())
        needed = {other: of if isinstance(of, str) else of["version"]
                  for other, of in table.get("dependencies", {}).items()}
        return name, version, needed, "DEPENDS_ON"
    table = tomllib.loads((SOURCES / "bindings/python/pyproject.toml").read_text())
    needed = {re.match(r"[\w.-]+", other)[0]: other for other in table["build-system"]["requires"]}
    return table["project"]["name"], table["project"]["version"], needed, "BUILD_DEPENDENCY_OF"


class Document:
    """The bill, as it grows."""

    def __init__(self, archive):
        version = re.search(r"-([0-9.]+)\.tar\.gz$", archive.name)[1]
        when = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
        sums = checksum(archive, "sha256")
        self.packages = {}
        self.root = self.package("Package-farcall", "farcall", None, versionInfo=version,
                                 packageFileName=archive.name, checksums=[sums], licenseDeclared=LICENSES)
        self.files = []
        self.relationships = []
        self.relate("SPDXRef-DOCUMENT", "DESCRIBES", self.root)
        self.head = {
            "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"farcall-{version}",
            "documentNamespace": f"urn:farcall:{version}:{sums['checksumValue']}",
            "creationInfo": {"created": when.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": ["Tool: sbom.py"]}}

    def relate(self, what, how, other, comment=None):
        relation = {"spdxElementId": what, "relationshipType": how, "relatedSpdxElement": other}
        self.relationships.append(relation | ({"comment": comment} if comment else {}))

    def package(self, known, name, purl, **more):
        known = "SPDXRef-" + known
        self.packages[known] = {
            "SPDXID": known, "name": name, "downloadLocation": "NOASSERTION", "licenseConcluded": "NOASSERTION",
            "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION", "filesAnalyzed": False} | more
        if purl:
            self.packages[known]["externalRefs"] = [{
                "referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}]
        return known

    def of_debian(self, name, version, architecture):
        purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(version, safe=':~')}?arch={architecture}"
        return self.package(identifier(f"{name}-{version}"), name, purl, versionInfo=version,
                            supplier="Organization: Debian")

    def made(self, path):
        """A package that is made of the archive, and what it asks its registry for."""
        name, version, needed, how = metadata(path)
        kind = "cargo" if path.suffix == ".crate" else "pypi"
        # Of a crate that another one asks for, this is what it gets.
        known = self.package(identifier(f"cargo-{name}" if kind == "cargo" else path.name), name,
                             f"pkg:{kind}/{name}@{version}", versionInfo=version,
                             packageFileName=path.name, checksums=[checksum(path, "sha256")])
        self.relate(known, "GENERATED_FROM", self.root)
        for other, versions in needed.items():
            asked = "SPDXRef-" + identifier(f"{kind}-{other}")
            if asked not in self.packages:
                self.package(identifier(f"{kind}-{other}"), other, f"pkg:{kind}/{other}")
            self.relate(*((known, how, asked) if how == "DEPENDS_ON" else (asked, how, known)), versions)

    def file(self, path, name):
        known = "SPDXRef-" + identifier("File-" + name)
        self.files.append({
            "SPDXID": known, "fileName": "./" + name, "copyrightText": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "checksums": [checksum(path, "sha1"), checksum(path, "sha256")]})
        self.relate(known, "GENERATED_FROM", self.root)
        return known

    def write(self, out):
        bill = self.head | {"packages": list(self.packages.values()), "files": self.files,
                            "relationships": self.relationships}
        json.dump(bill, out, indent=1)
        out.write("\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    for name in ("build", "prefix", "archive"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    parser.add_argument("packages", type=pathlib.Path, nargs="*")
    arguments = parser.parse_args()

    bill = Document(arguments.archive)
    for package in packages_of(headers_read(arguments.build)):
        bill.relate(bill.root, "DEPENDS_ON", bill.of_debian(*package), "headers of it are compiled in")
    for package in packages_of(compilers(arguments.build)):
        bill.relate(bill.of_debian(*package), "BUILD_TOOL_OF", bill.root)
    places = places_of_libraries()
    elves = list(elf_files(arguments.prefix))
    ours = {path.name.removesuffix(".0") for path in elves}  # by the names that programs ask for
    for path in elves:
        known = bill.file(path, str(path.relative_to(arguments.prefix)))
        for library in libraries_needed(path):
            if library in ours:
                continue
            owners = packages_of(places.get(library, []))
            if not owners:
                sys.exit(f"sbom: {path.name} needs {library}, which no package has")
            for package in owners:
                bill.relate(known, "DYNAMIC_LINK", bill.of_debian(*package), library)
    for package in arguments.packages:
        bill.made(package)
    bill.write(sys.stdout)


if __name__ == "__main__":
    main()
