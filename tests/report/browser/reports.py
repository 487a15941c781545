"""What the tests of reports share: the command, one browser, and a report that is opened again for each test.

Usage of each test: TEST.py MUSTER SAMPLE_PAGE FOLDER. Screenshots and reports stay in FOLDER.
"""

import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

try:
    from browser import Browser
except ImportError as missing:
    print(f"skipped: {missing} (Debian: chromium chromium-driver python3-selenium)")
    sys.exit(77)

MUSTER, SAMPLE_PAGE, FOLDER = (pathlib.Path(argument).absolute() for argument in sys.argv[1:4])

MODEL = {
    "name": "small",
    "defaults": {"placements": {"fsdp": "shard(0)"}},
    "parameters": [
        {"name": "embed", "shape": [61, 24], "algorithm": "adamw"},
        {"name": "l.{}.qkv", "layers": 3, "shape": [72, 24], "rows": [24, 24, 24]},
        {"name": "l.{}.up", "layers": 3, "shape": [70, 24]},
        {"name": "l.{}.down", "layers": 3, "shape": [24, 70]},
    ],
}


@functools.cache
def muster(*arguments):
    """Runs a command with --json."""
    return json.loads(subprocess.run([MUSTER, *arguments, "--json"], check=True, capture_output=True).stdout)


def in_units(key, value):
    """A value of --json as the page keeps it: nanoseconds for milliseconds, 1 for true."""
    return value * 1e6 if re.search(r"_ms(_|$)", key) else float(value)


SHARED = {}


def open_browser():
    SHARED["browser"] = Browser(FOLDER)


def close_browser():
    SHARED["browser"].close()


class ReportTest:
    """One report; the page is opened again for each test."""

    @classmethod
    def setUpClass(cls):
        cls.page = cls.make()

    @property
    def browser(self):
        return SHARED["browser"]

    def setUp(self):
        self.browser.open(self.page)

    def tearDown(self):
        self.assertEqual(self.browser.complaints(), [])
        self.assertEqual(self.browser.requests(), [])

    def assert_figures(self, css, expected):
        """Every element of `css` shows what --json has under its key."""
        cells = self.browser.all(f"{css} [data-key]") or self.browser.all(f"{css}[data-key]")
        self.assertGreater(len(cells), 3, css)
        for cell in cells:
            key = cell.get_attribute("data-key")
            self.assertIn(key, expected)
            self.assertAlmostEqual(
                float({"true": 1, "false": 0}.get(cell.get_attribute("data-value"), cell.get_attribute("data-value"))),
                in_units(key, expected[key]),
                delta=1e-6 * abs(in_units(key, expected[key])) + 1e-9,
                msg=key,
            )

    def look(self, name):
        """Light, dark, printed and narrow, with what must hold of each."""
        b = self.browser
        background = lambda: b.script("return getComputedStyle(document.body).backgroundColor")
        brightness = lambda: sum(map(int, re.findall(r"\d+", background())[:3]))
        b.shoot(f"{name}-light")
        self.assertGreater(brightness(), 600)
        b.medium("", "dark")
        self.assertLess(brightness(), 150)
        b.shoot(f"{name}-dark")
        b.click("[data-theme-name=light]")
        self.assertGreater(brightness(), 600)
        b.click("[data-theme-name=dark]")
        b.medium("", "light")
        self.assertLess(brightness(), 150)
        b.medium("print")
        self.assertEqual(brightness(), 3 * 255)
        for hidden in ("nav", "header .segments", ".field"):
            self.assertFalse(any(e.is_displayed() for e in b.all(hidden)), hidden)
        self.assertTrue(all(d.get_attribute("open") for d in b.all("details")))
        b.shoot(f"{name}-print")
        self.assertTrue(b.pdf(name).startswith(b"%PDF"))
        b.medium("")
        b.click("[data-theme-name=auto]")
        b.size(390)
        self.assertLessEqual(b.script("return document.documentElement.scrollWidth"), 390)
        b.shoot(f"{name}-narrow")


def main():
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            print(f"skipped: there is no {program} (Debian: chromium chromium-driver python3-selenium)")
            sys.exit(77)
    FOLDER.mkdir(parents=True, exist_ok=True)
    unittest.main(argv=sys.argv[:1], verbosity=2)
