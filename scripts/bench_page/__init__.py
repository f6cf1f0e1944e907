# SPDX-License-Identifier: Apache-2.0
"""The parts of the page that scripts/bench_report.py writes."""
