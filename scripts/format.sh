#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Formats the C++ sources in place; kernel/ has a style of its own.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

scripts/setup.sh lint
git -c safe.directory="$PWD" ls-files -z '*.cpp' '*.hpp' '*.h' 'bindings/*.c' ':!kernel' | xargs -0r clang-format -i
