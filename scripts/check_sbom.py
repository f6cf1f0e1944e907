#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tells whether a bill of materials is what SPDX 2.3 permits, and true of what it names.

Usage: check_sbom.py --prefix PREFIX BILL.spdx.json

PREFIX is the installation that it is about; the archive of the sources and the packages that are
made of it are beside the bill. Each fault is a line, and the exit status then is 1.
"""

import argparse
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tarfile

# Of the standard's schema, what sbom.py has a use for: each name, and what its value must be. Names
# that begin with a question mark may be missing; any others are faults.
SUM_DIGITS = {"SHA1": 40, "SHA256": 64}
ID = r"SPDXRef-[A-Za-z0-9.-]+"
TEXT = r"[\s\S]+"
ONE = r"(Apache-2\.0|GPL-2\.0-only|\(GPL-2\.0-only WITH Linux-syscall-note\))"
LICENSE = rf"NOASSERTION|NONE|{ONE}( AND {ONE})*"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
SUM = {"algorithm": "SHA1|SHA256", "checksumValue": r"[0-9a-f]+"}
PURL = r"pkg:(deb/debian|pypi|cargo)/[a-z0-9.+-]+(@[A-Za-z0-9.:~%-]+)?(\?arch=[a-z0-9-]+)?"
REFERENCE = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": PURL}
PACKAGE = {
    "SPDXID": ID, "name": TEXT, "?versionInfo": TEXT, "?packageFileName": TEXT,
    "?checksums": [SUM], "filesAnalyzed": False, "downloadLocation": "NOASSERTION|NONE",
    "licenseConcluded": LICENSE, "licenseDeclared": LICENSE, "copyrightText": TEXT,
    "?supplier": r"(Person|Organization): .+|NOASSERTION", "?externalRefs": [REFERENCE]}
FILE = {"SPDXID": ID, "fileName": r"\./.+", "copyrightText": TEXT, "licenseConcluded": LICENSE,
        "checksums": [SUM]}
RELATIONSHIP = {
    "spdxElementId": ID, "relatedSpdxElement": ID, "?comment": TEXT,
    "relationshipType": "DESCRIBES|DEPENDS_ON|BUILD_DEPENDENCY_OF|BUILD_TOOL_OF|GENERATED_FROM|"
                        "DYNAMIC_LINK"}
BILL = {
    "spdxVersion": r"SPDX-2\.3", "dataLicense": r"CC0-1\.0", "SPDXID": "SPDXRef-DOCUMENT",
    "name": TEXT, "documentNamespace": r"[a-z][a-z0-9+.-]*:[^\s#]+",
    "creationInfo": {"created": TIME, "creators": [r"(Tool|Person|Organization): .+"]},
    "packages": [PACKAGE], "files": [FILE], "relationships": [RELATIONSHIP]}


def faults_of_shape(value, shape, place):
    """What of a value is not of its shape: a table, a list of one shape, a pattern, or a constant."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            yield f"{place} is no object"
            return
        names = {name.lstrip("?"): inner for name, inner in shape.items()}
        yield from (f"{place} has a {name}" for name in value if name not in names)
        yield from (f"{place} has no {name}"
                    for name in shape if name[0] != "?" and name not in value)
        for name in names.keys() & value.keys():
            yield from faults_of_shape(value[name], names[name], f"{place}.{name}")
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            yield f"{place} is no list, or empty"
            return
        for number, inner in enumerate(value):
            yield from faults_of_shape(inner, shape[0], f"{place}[{number}]")
    elif isinstance(shape, str):
        if not isinstance(value, str) or not re.fullmatch(shape, value):
            yield f"{place} is {value!r}"
    elif value is not shape:
        yield f"{place} is {value!r}"


def faults_of_references(bill):
    """Each element has one identifier, and all that are referred to are there; none stands apart."""
    ids = [element["SPDXID"] for element in [bill, *bill["packages"], *bill["files"]]]
    yield from (f"{known} is there twice" for known in sorted({i for i in ids if ids.count(i) > 1}))
    related = set()
    seen = set()
    for relation in bill["relationships"]:
        ends = relation["spdxElementId"], relation["relatedSpdxElement"]
        yield from (f"a relationship of {known}, which is not there"
                    for known in ends if known not in ids)
        related.update(ends)
        key = json.dumps(relation, sort_keys=True)
        if key in seen:
            yield f"{ends[0]} is related twice to {ends[1]}"
        seen.add(key)
    yield from (f"{known} is related to nothing" for known in ids if known not in related)


def faults_of_sums(element, path):
    for check in element["checksums"]:
        kind, value = check["algorithm"], check["checksumValue"]
        if len(value) != SUM_DIGITS[kind] or hashlib.new(kind, path.read_bytes()).hexdigest() != value:
            yield f"{path.name} has another {kind}"


def described(bill):
    """The package that all the others are for."""
    roots = [relation["relatedSpdxElement"] for relation in bill["relationships"]
             if relation["relationshipType"] == "DESCRIBES"]
    found = [package for package in bill["packages"] if package["SPDXID"] in roots]
    return found[0] if len(found) == 1 else None


def licenses(text):
    """As their identifiers are now, of those that the kernel's sources still use."""
    found = re.findall(r"SPDX-License-Identifier: ([\w.-]+(?: WITH [\w-]+)?)", text)
    return {re.sub(r"^GPL-2\.0\b(?!-)", "GPL-2.0-only", each) for each in found}


def faults_of_archive(bill, archive):
    """Version, time and licences of the sources are those of the bill."""
    root = described(bill)
    yield from faults_of_sums(root, archive)
    found = set()
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.count("/") == 1 and member.name.endswith("/CMakeLists.txt"):
                text = tar.extractfile(member).read().decode()
                version = re.search(r"^project\(farcall VERSION ([0-9.]+)", text, re.MULTILINE)[1]
                if root["versionInfo"] != version:
                    yield f"the version is {version}, not {root['versionInfo']}"
                when = datetime.datetime.fromtimestamp(member.mtime, datetime.timezone.utc)
                if bill["creationInfo"]["created"] != when.strftime("%Y-%m-%dT%H:%M:%SZ"):
                    yield f"the sources are of {when}, not {bill['creationInfo']['created']}"
            if member.isfile():
                found |= licenses(tar.extractfile(member).read(400).decode(errors="replace"))
    declared = {each.strip("()") for each in root["licenseDeclared"].split(" AND ")}
    if declared != found:
        yield f"licences of the sources: {sorted(found)}, declared: {sorted(declared)}"


def faults_of_made(bill, folder, archive):
    """All that is beside the bill is in it."""
    named = {package["packageFileName"]: package for package in bill["packages"]
             if "packageFileName" in package}
    made = [path for path in folder.iterdir() if path.suffix in (".whl", ".crate", ".gz")]
    for name in sorted(named.keys() | {path.name for path in made}):
        if name not in named:
            yield f"{name} is not in the bill"
        elif not (folder / name).exists():
            yield f"{name} is not there"
        elif folder / name != archive:
            yield from faults_of_sums(named[name], folder / name)


def dynamic(name, path):
    said = subprocess.run(["objdump", "-p", path], stdout=subprocess.PIPE, text=True, check=True)
    return re.findall(rf"^\s+{name}\s+(\S+)$", said.stdout, re.MULTILINE)


def needed_by(path):
    return set(dynamic("NEEDED", path))


def is_elf(path):
    if path.is_symlink() or not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def faults_of_files(bill, prefix):
    """Each program and library of the installation is in it, with all that it is linked to."""
    elves = {f"./{path.relative_to(prefix)}": path for path in prefix.rglob("*") if is_elf(path)}
    files = {file["fileName"]: file for file in bill["files"]}
    yield from (f"{name} is in only one of bill and installation"
                for name in sorted(elves.keys() ^ files.keys()))
    ours = {name for path in elves.values() for name in dynamic("SONAME", path)}
    for name in sorted(elves.keys() & files.keys()):
        yield from faults_of_sums(files[name], elves[name])
        linked = {relation["comment"] for relation in bill["relationships"]
                  if relation["relationshipType"] == "DYNAMIC_LINK"
                  and relation["spdxElementId"] == files[name]["SPDXID"]}
        needed = needed_by(elves[name]) - ours
        if linked != needed:
            yield f"{name} is linked to {sorted(needed)}, not {sorted(linked)}"


def faults(bill, path, prefix):
    shape = list(faults_of_shape(bill, BILL, "bill"))
    if shape:
        return shape
    root = described(bill)
    if root is None:
        return ["not one package is described"]
    archive = path.parent / root.get("packageFileName", "none")
    if not archive.exists():
        return [f"{archive.name} is not there"]
    return [*faults_of_references(bill), *faults_of_archive(bill, archive),
            *faults_of_made(bill, path.parent, archive), *faults_of_files(bill, prefix)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--prefix", type=pathlib.Path, required=True)
    parser.add_argument("bill", type=pathlib.Path)
    arguments = parser.parse_args()
    bill = json.loads(arguments.bill.read_text())
    found = faults(bill, arguments.bill.resolve(), arguments.prefix)
    for fault in found:
        print(f"{arguments.bill.name}: {fault}", file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
