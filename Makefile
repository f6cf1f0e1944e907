# SPDX-License-Identifier: Apache-2.0
KILLS ?= 1000000
PROGRAMS ?= 100000
CALLS ?= 1000000
.PHONY: help build demo check test soak bench claims wheel package dist format lint clean

help:
	@echo "make build    build everything; the command is build/release/farcall"
	@echo "make demo     what each way between two processes costs on this machine"
	@echo "make check    the quick tests, optimised: for daily work"
	@echo "make test     all tests: optimised, under sanitizers, from an installation"
	@echo "make soak     for hours: KILLS=1000000, PROGRAMS=100000 random ones, attacks, CALLS=1000000 over bridges"
	@echo "make bench    the full measurements"
	@echo "make claims   the tables of speeds in the README and of doors in their guide, measured again"
	@echo "make wheel    the Python package, as a wheel and as sources"
	@echo "make package  Debian's packages, in build/package"
	@echo "make dist     a release, twice the same: sources, wheel, crates, an SBOM"
	@echo "make format   format the sources in place"
	@echo "make lint     check format, sources and scripts"
	@echo "make clean    remove build/"

build:
	scripts/setup.sh build
	cmake --preset release
	cmake --build --preset release

demo:
	scripts/demo.sh

check:
	scripts/test.sh --quick

test:
	scripts/test.sh

soak: build
	build/release/tests/soak/kill-soak $(KILLS)
	FARCALL_TEST_PROGRAMS=$(PROGRAMS) build/release/tests/preload/preload-stress-tests --gtest_filter='*Random*'
	build/release/tests/soak/attack-load
	build/release/tests/soak/bridge-soak 60 1 $(CALLS)

bench:
	scripts/bench.sh

claims: build
	scripts/setup.sh programs demo
	/usr/bin/python3 scripts/claims.py

wheel:
	scripts/setup.sh build wheel
	scripts/wheel.sh

package:
	scripts/setup.sh build package
	scripts/package.sh

dist:
	scripts/setup.sh build wheel crates
	scripts/dist.sh

format:
	scripts/format.sh

lint:
	scripts/lint.sh

clean:
	rm -rf build
