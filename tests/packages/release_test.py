#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `make dist` makes without compiling: the archive of the sources, and the bill of materials.
"""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["FARCALL_BUILD"])
sys.path.insert(0, str(SOURCE / "scripts"))
import check_sbom  # noqa: E402


def run(*command, **environment):
    return subprocess.run([str(word) for word in command], env={**os.environ, **environment},
                          check=True, stdout=subprocess.PIPE, text=True).stdout


class Folder(unittest.TestCase):
    """Has a folder that goes with the test, and in it the archive."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="farcall-release-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.version = run(SOURCE / "scripts/sources.sh", "version").strip()
        cls.archive = cls.folder / f"farcall-{cls.version}.tar.gz"
        run(SOURCE / "scripts/sources.sh", cls.archive)


class Archive(Folder):
    def test_it_has_what_git_tracks_and_nothing_else(self):
        tracked = run(SOURCE / "scripts/sources.sh", "list", ".").strip("\0").split("\0")
        with tarfile.open(self.archive) as archive:
            members = archive.getmembers()
        self.assertEqual([member.name for member in members],
                         [f"farcall-{self.version}/{name}" for name in sorted(tracked)])
        self.assertGreater(len(members), 500)
        self.assertEqual({(member.uid, member.gid, member.mtime) for member in members},
                         {(0, 0, int(run(SOURCE / "scripts/sources.sh", "epoch")))})

    def test_the_same_bytes_come_of_what_was_in_it(self):
        run("tar", "-xzf", self.archive, "-C", self.folder, "--no-same-owner")
        tree = self.folder / f"farcall-{self.version}"
        (tree / "build").mkdir()
        (tree / "build/something").write_text("that was built")
        again = self.folder / "again.tar.gz"
        run("sh", "-c", 'umask 077; touch -h . bindings; exec env -u SOURCE_DATE_EPOCH "$0" "$1"',
            tree / "scripts/sources.sh", again, TZ="Pacific/Chatham", LC_ALL="C")
        self.assertEqual(self.archive.read_bytes(), again.read_bytes())


class Bill(Folder):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.crate = cls.folder / "farcall-0.1.0.crate"
        cls.crate.write_bytes(b"a crate")
        cls.path = cls.folder / "bill.spdx.json"
        epoch = run(SOURCE / "scripts/sources.sh", "epoch").strip()
        cls.path.write_text(run(SOURCE / "scripts/sbom.py", "--build", BUILD, "--prefix", cls.prefix,
                                "--archive", cls.archive, "--", cls.crate, SOURCE_DATE_EPOCH=epoch))
        cls.bill = json.loads(cls.path.read_text())

    def faults(self, bill):
        return check_sbom.faults(bill, self.path, self.prefix)

    def test_it_is_right(self):
        self.assertEqual(self.faults(self.bill), [])

    def test_it_has_what_was_compiled_in_and_what_compiled(self):
        names = {package["name"] for package in self.bill["packages"]}
        for name in ("libc6-dev", "linux-libc-dev", "libstdc++", "libfmt-dev", "libcli11-dev",
                     "nlohmann-json3-dev", "libc6", "g++", "farcall-sys", "libc"):
            self.assertTrue([one for one in names if one.startswith(name)], name)
        files = {file["fileName"] for file in self.bill["files"]}
        for name in ("./bin/farcall", "libfarcall-preload.so", "libfarcall-messages.so",
                     "libfarcall-c.so"):
            self.assertTrue([one for one in files if name in one], name)

    def test_what_is_not_right_is_told(self):
        def changes(bill):
            """One fault each, of form or of fact."""
            def file(bill):
                return bill["files"][0]

            def reference(bill):
                return bill["packages"][1]["externalRefs"][0]

            yield lambda bill: bill.pop("dataLicense")
            yield lambda bill: bill.update(spdxVersion="SPDX-2.2")
            yield lambda bill: bill.update(comments="no such name")
            yield lambda bill: bill["creationInfo"].update(created="2026-01-01")
            yield lambda bill: bill["creationInfo"].update(created="2001-01-01T00:00:00Z")
            yield lambda bill: bill["creationInfo"].update(creators=["sbom.py"])
            yield lambda bill: bill["packages"][0].update(versionInfo="0.0.9")
            yield lambda bill: bill["packages"][0].update(licenseDeclared="Apache-2.0")
            yield lambda bill: bill["packages"][0].update(licenseDeclared="GPL-2.0")
            yield lambda bill: bill["packages"][0]["checksums"][0].update(checksumValue="0" * 64)
            yield lambda bill: bill["packages"][1].update(filesAnalyzed=True)
            yield lambda bill: bill["packages"][1].update(SPDXID="libc6")
            yield lambda bill: bill["packages"][1].update(SPDXID=bill["packages"][2]["SPDXID"])
            yield lambda bill: reference(bill).update(referenceLocator="pkg:libc6")
            yield lambda bill: bill["packages"].append(
                {**bill["packages"][1], "SPDXID": "SPDXRef-apart"})
            yield lambda bill: bill["packages"].pop()
            yield lambda bill: file(bill)["checksums"].pop(0) and file(bill)["checksums"].pop()
            yield lambda bill: file(bill)["checksums"][0].update(checksumValue="0" * 40)
            yield lambda bill: bill["files"].pop()
            yield lambda bill: bill["relationships"].pop()
            yield lambda bill: bill["relationships"].append(bill["relationships"][-1])
            yield lambda bill: bill["relationships"][1].update(relationshipType="USES")
            yield lambda bill: bill["relationships"].pop(0)

        for number, change in enumerate(changes(self.bill)):
            with self.subTest(change=number):
                bill = copy.deepcopy(self.bill)
                change(bill)
                self.assertNotEqual(bill, self.bill)
                self.assertNotEqual(self.faults(bill), [])

    def test_files_that_change_or_are_new_are_told(self):
        program = self.prefix / "bin/farcall"
        there = program.read_bytes()
        try:
            program.write_bytes(there + b"\0")
            self.assertIn("farcall has another SHA256", self.faults(self.bill))
        finally:
            program.write_bytes(there)
        another = self.folder / "another.whl"
        another.write_bytes(b"")
        try:
            self.assertEqual(self.faults(self.bill), ["another.whl is not in the bill"])
        finally:
            another.unlink()


if __name__ == "__main__":
    unittest.main()
