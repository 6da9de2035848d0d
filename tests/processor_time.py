"""`pytest -p tests.processor_time`: processor seconds of tests, by folder and of the twenty that take most.

User and system time of the test's process, and of children that ended and were waited for meanwhile.  Unlike the time on
the clock it hardly depends on what else the computer does.  Works with `-n` too.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePath

import pytest

PROPERTY = "processor seconds"
MOST = 20


def _now() -> float:
    uses = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(use.ru_utime + use.ru_stime for use in uses)


class _Meter:
    """Registered in each process that runs tests."""

    def __init__(self) -> None:
        self._began = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        self._began = _now()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield
        item.user_properties.append((PROPERTY, _now() - self._began))


def pytest_configure(config: pytest.Config) -> None:
    """Measure from now on."""
    config.pluginmanager.register(_Meter())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    tests, folders = defaultdict[str, float](float), defaultdict[str, float](float)
    for report in (report for reports in terminalreporter.stats.values() for report in reports):
        if getattr(report, "when", "") == "teardown":
            taken = sum(float(str(value)) for name, value in report.user_properties if name == PROPERTY)
            tests[report.nodeid] += taken
            folders["/".join(PurePath(report.nodeid.split("::")[0]).parts[:2])] += taken
    terminalreporter.section(f"processor seconds: {sum(tests.values()):.0f} of {len(tests)} tests")
    for name, taken in [*_largest(folders), *_largest(tests)[:MOST]]:
        terminalreporter.write_line(f"{taken:8.1f}  {name}")


def _largest(taken: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(taken.items(), key=lambda each: -each[1])
