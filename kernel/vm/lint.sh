#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# What tools say of the module: the compiler with W=1, sparse, kernel-doc, and checkpatch where the sources
# of debug_kernel.sh are. Usage: lint.sh. Fails if one of them has anything to say.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

said=0
command -v sparse >/dev/null || { echo "lint: sparse is missing" >&2 && exit 77; }
# A file that is older than its object is not looked at again.
rm -f ../build/kernel/6.1/module/*.o ../build/kernel/6.1/module/{handles,doors}/*.o
vm/build.sh 6.1 W=1 C=2 >/dev/null
log=../build/kernel/6.1/module/build.log
grep -q 'CHECK' "$log" || { echo "lint: sparse has not run" >&2 && exit 1; }
! grep -E 'warning|error' "$log" || said=1

# Every function that files share says what it takes and returns.
doc=$(find ../build/kernel/*/root/usr/lib/linux-kbuild-*/scripts/ -name kernel-doc | sort -V | tail -n 1)
[[ -z $doc ]] || ! perl "$doc" -none -Wall ./*.h handles/*.h doors/*.h 2>&1 | grep . || said=1

checkpatch=${FARCALL_KERNEL_CACHE:-../build/kernel}/linux-source-6.1/scripts/checkpatch.pl
if [[ -f $checkpatch ]]; then
  # compat.h is there to know versions, which code in the kernel's own tree need not.
  for file in *.[ch] handles/*.[ch] doors/*.[ch] include/*.h lib/*.[ch]; do
    ignore=SPDX_LICENSE_TAG
    [[ $file != compat.h ]] || ignore+=,LINUX_VERSION_CODE,CONSTANT_COMPARISON
    perl "$checkpatch" --no-tree --terse --no-summary --max-line-length=100 --ignore "$ignore" \
      -f "$file" || said=1
  done
else
  echo "lint: no checkpatch.pl without the sources of make vm-debug" >&2
fi
exit "$said"
