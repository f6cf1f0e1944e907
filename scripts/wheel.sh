#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the source distribution and the wheel of the Python package, in build/wheel/dist.
# Usage: scripts/wheel.sh [PYTHON]    (default: /usr/bin/python3)
#
# What builds them comes from Python's registry, into a virtual environment of its own, unless
# FARCALL_WHEEL_TOOLS names one that has it: then nothing is fetched. The wheel is for
# Python 3.11 and all that follow, and has the library in it.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

python=${1:-/usr/bin/python3}
place=$PWD/build/wheel
mkdir -p "$place"
tools=${FARCALL_WHEEL_TOOLS:-$place/tools}
if [[ ! ${FARCALL_WHEEL_TOOLS:-} ]]; then
  # One whose making was interrupted has no pip.
  "$tools/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check \
    auditwheel build 'scikit-build-core>=0.10' pathspec wheel
fi

# The sources that the package is built of, with its pyproject.toml at the root.
tree=$place/tree
rm -rf "$tree" "$place/dist"
mkdir -p "$tree"
scripts/sources.sh list CMakeLists.txt LICENSE kernel/COPYING cmake include src bindings/c bindings/python kernel/lib \
  kernel/include integrations | xargs -0 cp --parents -t "$tree"
sed -e 's|^cmake.source-dir = .*|cmake.source-dir = "."|' \
  -e 's|^wheel.packages = .*|wheel.packages = ["bindings/python/src/farcall"]|' \
  bindings/python/pyproject.toml >"$tree/pyproject.toml"
cp bindings/python/README.md "$tree/README.md"

# First the source distribution, then the wheel of it: so it is known to be whole.
"$tools/bin/python" -m build --no-isolation --outdir "$place/dist" "$tree"

# The texts of the licences of what is in it.
for text in LICENSE kernel/COPYING; do
  tar -xzOf "$place"/dist/farcall-*.tar.gz --wildcards "*/$text" | cmp - "$text"
done

# Its name says on which systems it works: what it needs of theirs is looked up in it.
shown=$("$tools/bin/auditwheel" show "$place"/dist/farcall-*.whl) # read to its end, or it fails
tag=$(grep -om1 '"manylinux_[0-9a-z_]*"' <<<"$shown" | tr -d '"')
"$tools/bin/python" -m wheel tags --remove --platform-tag "$tag" "$place"/dist/farcall-*.whl >/dev/null

# It works where nothing else is installed.
rm -rf "$place/fresh"
"$python" -m venv "$place/fresh"
"$place/fresh/bin/python" -m pip install --quiet --disable-pip-version-check --no-index \
  "$place"/dist/farcall-*.whl
env -u PYTHONPATH "$place/fresh/bin/python" -c '
import farcall
a, b = farcall.pipe()
a.send(b"hello")
assert b.recv() == b"hello"
q = farcall.Queue()
q.put(1)
assert q.get() == 1
from farcall import messages
with messages.Channel() as channel, channel.connect() as connection:
    connection.pulse(1)
    assert channel.receive().code == 1
'
ls -l "$place/dist"
