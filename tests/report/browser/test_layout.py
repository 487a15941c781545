"""Looks at every kind of report as readers do: on a phone and on a desk, light and dark.

Usage: test_layout.py MUSTER SAMPLE_PAGE FOLDER. Screenshots and reports stay in FOLDER.
"""

import itertools
import json
import re
import subprocess
import unittest

from reports import FOLDER, MODEL, MUSTER, ReportTest, SAMPLE_PAGE, close_browser, main, muster, open_browser
from vision import contrast, difference

setUpModule, tearDownModule = open_browser, close_browser

LOOKS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]

# Names that begin and end alike, and are longer than any column.
LONG_NAMES = {
    "name": "long",
    "defaults": {"placements": {"fsdp": "shard(0)"}},
    "parameters": [
        {
            "name": f"language_model.transformer.decoder_blocks.{{}}.{block}.projection.linear_layer.weight",
            "layers": 3,
            "shape": [24, 24],
        }
        for block in ("self_attention.query", "self_attention.key", "cross_attention.query", "cross_attention.key")
    ],
}

# Kinds of spans that share a lane of the timeline, by the names of their colours.
LANES = [
    ["orthogonalize", "normalize", "pack", "apply", "elementwise", "model", "control", "waiting"],
    ["in", "out", "exchange"],
]

COLOURS = """
const probe = document.body.appendChild(document.createElement('span'));
return arguments[0].map((name) => {
  probe.style.color = `var(--${name})`;
  return [name, getComputedStyle(probe).color];
});
"""

# Elements that stick out of the window, but for what scrolls by itself.
STICKING_OUT = """
return [...document.querySelectorAll('body *')]
  .filter((e) => !e.closest('.scroll') && !e.closest('nav') && !e.closest('.unseen') && !e.closest('#tip'))
  .filter((e) => e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().right > window.innerWidth + 0.5)
  .map((e) => `${e.tagName}.${e.className.baseVal ?? e.className}`)
"""

# Rows of labels, and runs of pixels in the colours of waves, both as top and bottom in CSS pixels of the window.
ROWS_AND_BARS = """
const canvas = document.getElementById('map-canvas');
const paper = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const pixel = (colour) => {
  paper.clearRect(0, 0, 1, 1);
  paper.fillStyle = colour;
  paper.fillRect(0, 0, 1, 1);
  return [...paper.getImageData(0, 0, 1, 1).data.slice(0, 3)];
};
const waves = [...document.querySelectorAll('#map .legend i')].map((i) => pixel(getComputedStyle(i).backgroundColor));
const box = canvas.getBoundingClientRect();
paper.canvas.width = canvas.width;
paper.canvas.height = canvas.height;
paper.drawImage(canvas, 0, 0);
const {data} = paper.getImageData(0, 0, canvas.width, canvas.height);
const painted = (y) => {
  for (let x = 0; x < canvas.width; x += 2) {
    const at = 4 * (y * canvas.width + x);
    if (waves.some((wave) => wave.every((value, i) => Math.abs(value - data[at + i]) <= 2))) return true;
  }
  return false;
};
const bars = [];
for (let y = 0; y < canvas.height; y += 1) {
  if (!painted(y)) continue;
  const top = box.top + (y * box.height) / canvas.height;
  const bottom = box.top + ((y + 1) * box.height) / canvas.height;
  if (bars.length > 0 && top - bars[bars.length - 1][1] < 0.5) bars[bars.length - 1][1] = bottom;
  else bars.push([top, bottom]);
}
const tops = [...document.querySelectorAll('#map .map-label')].map((label) => label.getBoundingClientRect().top);
const pitch = tops.length > 1 ? tops[1] - tops[0] : 24;
return {rows: tops.map((top, i) => [top, tops[i + 1] ?? top + pitch]), bars};
"""

# Colours of words and of what they stand on.
INK_AND_PAPER = """
const found = [];
for (const css of ['#findings li', '.lead', '.tile dt', 'thead th', '.source', '.bar-text', '.small', '.terms dd']) {
  for (const element of document.querySelectorAll(css)) {
    let under = element;
    while (getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentElement;
    found.push([css, getComputedStyle(element).color, getComputedStyle(under).backgroundColor]);
  }
}
return found;
"""


def rgb(css):
    """What getComputedStyle says of a colour."""
    values = [float(value) for value in re.findall(r"[\d.]+", css)[:3]]
    return [255 * value for value in values] if css.startswith("color(") else values


class LayoutTest(ReportTest):
    name = ""
    model = MODEL
    flags = ()
    sources = {}  # by key of a figure

    @classmethod
    def make(cls):
        page, model = FOLDER / f"layout-{cls.name}.html", FOLDER / f"layout-{cls.name}.model"
        model.write_text(json.dumps(cls.model))
        command = [MUSTER, *(str(model) if flag == "MODEL" else flag for flag in cls.flags)]
        cls.said = subprocess.run(
            [*command, "--html", str(page)], check=True, capture_output=True, text=True, cwd=FOLDER
        ).stdout
        return page

    def texts(self, css):
        return [element.text for element in self.browser.all(css)]

    def check_window(self, width):
        self.assertLessEqual(self.browser.script("return document.documentElement.scrollWidth"), width)
        self.assertEqual(self.browser.script(STICKING_OUT), [])

    # On a phone the canvas was shrunk and its labels were not: bars stood up to two rows above their names.
    def check_bars_in_rows(self):
        found = self.browser.script(ROWS_AND_BARS)
        self.assertGreater(len(found["rows"]), 0)
        self.assertEqual(len(found["bars"]), len(found["rows"]), found)
        for (top, bottom), (first, last) in zip(found["rows"], found["bars"]):
            self.assertGreaterEqual(first, top - 0.5, found)
            self.assertLessEqual(last, bottom + 0.5, found)
            self.assertLess(bottom - last, 4, found)  # bars stand on the bottom of their row

    def check_labels(self):
        rows = self.browser.script("return [...document.querySelectorAll('#map .map-label')].map((e) => e.innerText)")
        self.assertEqual(len(set(rows)), len(rows), rows)
        cut = self.browser.script(
            "return [...document.querySelectorAll('#map .map-label > *')]"
            ".filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent)"
        )
        self.assertEqual(cut, [])

    def check_map(self, width):
        b = self.browser
        self.check_labels()
        self.check_bars_in_rows()
        if opens := b.all("#map button.map-label"):
            opens[0].click()
            self.check_labels()
            self.check_bars_in_rows()
        b.size(1280 if width == 390 else 390)
        b.settle()
        self.check_labels()
        self.check_bars_in_rows()

    def check_words(self):
        for css, ink, paper in self.browser.script(INK_AND_PAPER):
            self.assertGreater(contrast(rgb(ink), rgb(paper)), 4.5, css)

    def check_timeline_colours(self):
        b = self.browser
        shown = b.script(
            "return [...document.querySelectorAll('#timeline .legend .key')]"
            ".map((e) => [e.innerText, getComputedStyle(e.firstChild).backgroundColor])"
        )
        for (one, ink), (other, ink_of_other) in itertools.combinations(shown, 2):
            self.assertNotEqual(ink, ink_of_other, (one, other))

    def test_every_look(self):
        for width, scheme in LOOKS:
            with self.subTest(width=width, scheme=scheme):
                self.browser.open(self.page, width)
                self.browser.medium("", scheme)
                self.browser.settle()
                self.browser.shoot(f"{self.name}-{width}-{scheme}")
                self.check_window(width)
                self.check_words()
                if self.browser.all("#timeline"):
                    self.check_timeline_colours()
                if self.browser.all("#map"):
                    self.check_map(width)

    def test_first_bars_show_the_step(self):
        bars = self.browser.all(".bars")
        if not bars:
            return
        chosen = self.browser.script(
            "return document.querySelector('.bars').closest('section').querySelector('select').selectedOptions[0].text"
        )
        self.assertRegex(chosen, "^(Step|Optimizer step|GFLOP/s), (measured|predicted|simulated)$")

    def test_begins_with_findings(self):
        first = self.browser.script("return document.querySelector('main').firstElementChild.id")
        self.assertEqual(first, "findings")
        self.assertGreaterEqual(len(self.browser.all("#findings li")), 2)

    def shown_sources(self):
        """By key: the words next to each figure of the tiles and in the heads of tables."""
        found = {}
        for tile in self.browser.all("#facts .tile"):
            tags = [tag.get_attribute("data-source") for tag in tile.find_elements("css selector", ".source")]
            found.setdefault(tile.get_attribute("data-key"), []).append(tuple(tags))
        for table in self.browser.all("table"):
            row = table.find_elements("css selector", "tbody tr")[0].find_elements("css selector", "[data-key]")
            if not row:
                continue
            heads = table.find_elements("css selector", "thead th")[-len(row) :]
            for cell, head in zip(row, heads):
                tags = [tag.get_attribute("data-source") for tag in head.find_elements("css selector", ".source")]
                found.setdefault(cell.get_attribute("data-key"), []).append(tuple(tags))
        return found

    def test_says_where_figures_come_from(self):
        shown = self.shown_sources()
        for key, tags in shown.items():
            if re.search(r"_ms(_|$)|^error$|gflops", key):
                self.assertTrue(all(len(tag) == 1 for tag in tags), (key, tags))
        for key, allowed in self.sources.items():
            self.assertIn(key, shown)
            self.assertEqual({tag[0] for tag in shown[key]}, {allowed}, key)
        parts = {"timeline": self.timeline_source, "loads": "predicted"}
        for part, source in parts.items():
            if self.browser.all(f"#{part}"):
                self.assertEqual(self.browser.attribute(f"#{part} h2 .source", "data-source"), source)
                self.assertEqual(self.browser.one(f"#{part} h2 .source").text, source)

    timeline_source = "measured"

    def test_explains_what_it_names(self):
        b = self.browser
        terms = [e.get_attribute("data-term") for e in b.all("#terms dt")]
        for row in b.all("#strategies tbody tr"):
            strategy = row.get_attribute("data-strategy")
            self.assertIn(strategy, terms)
            self.assertTrue(b.attribute(f"#strategies tr[data-strategy='{strategy}'] button", "title"))
        for key in ("over_bound", "bound_ms", "imbalance", "padding_bytes"):
            if b.all(f"[data-key={key}]"):
                self.assertIn(key, terms)
        for load in b.data()["loads"]:
            busy = max(c + e for c, e in zip(load["compute_ns"], load["exchange_ns"]))
            if not b.all("#loads select"):
                continue
            b.pick("#loads label:nth-of-type(2) select", load["strategy"])
            said = [line for line in self.texts("#loads-note p") if line.startswith(f"{load['strategy']}:")]
            self.assertEqual(len(set(said)), 1)
            self.assertEqual("exchanges and computation overlap" in said[0], load["step_ns"] < busy, said)

    def assert_units_of_the_command(self, css):
        """What the page shows stands in the command's own output, word for word."""
        for cell in self.browser.all(css):
            if cell.text not in ("yes", "no") and not cell.get_attribute("class") == "words":
                self.assertIn(cell.text.rstrip("×"), self.said, cell.get_attribute("data-key"))


class PlanLayout(LayoutTest, unittest.TestCase):
    name = "plan"
    flags = ("plan", "gpt2-small", "--mesh", "fsdp=8", "--layers", "5")
    sources = {"predicted_ms": "predicted", "over_bound": "predicted", "plan_ms": "measured"}

    def test_says_which_part_of_the_model_it_is(self):
        self.assertIn("only the first 5 layers (--layers 5)", self.browser.one(".subtitle").text)

    def test_has_the_units_of_the_command(self):
        self.assert_units_of_the_command("#facts .tile:not([data-key=plan_ms]) dd:not(.note)")
        self.assert_units_of_the_command("#wave-table td[data-key]")

    # 25.3 ms for a step, and a rank that is busy for 32.3 ms: readers took it for a mistake.
    def test_a_step_may_be_shorter_than_its_slowest_rank_is_busy(self):
        shorter = [line for line in self.texts("#loads-note p") if "exchanges and computation overlap" in line]
        self.assertEqual(len(shorter), 1)
        self.assertRegex(shorter[0], r"^chunked: the slowest rank is busy for [\d.]+ .?s, and the step takes [\d.]+ .?s")


class LongNames(LayoutTest, unittest.TestCase):
    name = "long"
    model = LONG_NAMES
    flags = ("plan", "MODEL", "--ranks", "3")


class ParametersLayout(LayoutTest, unittest.TestCase):
    """The table of all parameters, of a model whose layouts are long."""

    name = "parameters"
    flags = ("plan", "moe-397b", "--mesh", "fsdp=4,ep=4", "--layers", "2", "--scratch-mib", "0", "--parameters")

    # It was folded, and 50 rows were counted where a model has 49 parameters.
    def test_all_parameters_are_there_and_their_total(self):
        names = [row["parameter"] for row in self.rows]
        self.assertEqual(self.texts("#table-0 tbody th"), names)
        self.assertTrue(self.texts("#table-0 .lead")[0].startswith(f"{len(names)} parameters:"))
        self.assertEqual(self.texts("#table-0 tfoot th"), [f"{len(names)} in all"])
        self.assertTrue(self.browser.one("#table-0 tfoot").is_displayed())

    # Words began on the right, as figures do, and the last columns were outside of a desk's window.
    def test_words_begin_on_the_left_and_all_columns_are_in_the_window(self):
        aligned = "return [...document.querySelectorAll('#table-0 tbody tr:first-child td')].map((e) => getComputedStyle(e).textAlign)"
        self.assertEqual(self.browser.script(aligned), ["right"] * 2 + ["left"] * 3 + ["right"] + ["left"] * 2)
        wide = "const e = document.querySelector('#table-0 .scroll'); return e.scrollWidth - e.clientWidth"
        self.assertLessEqual(self.browser.script(wide), 0)

    def test_heads_and_names_stay_in_sight(self):
        b = self.browser
        for width in (390, 1280):
            b.open(self.page, width)
            b.script("const e = document.querySelector('#table-0 .scroll'); e.scrollTo(e.scrollWidth, e.scrollHeight)")
            place = "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.right]"
            window = b.script(place, b.one("#table-0 .scroll"))
            head = b.script(place, b.one("#table-0 thead th"))
            self.assertAlmostEqual(head[1], window[1], delta=1)
            for css in ("thead th", "tbody tr:last-child th", "tfoot th"):
                left, _, right = b.script(place, b.one(f"#table-0 {css}"))
                self.assertAlmostEqual(left, window[0], delta=1)
                self.assertLess(right - left, (window[2] - window[0]) / 2, css)

    @classmethod
    def make(cls):
        cls.rows = muster(*cls.flags)["parameter_table"]
        return super().make()


class BenchLayout(LayoutTest, unittest.TestCase):
    name = "bench"
    flags = (
        *("bench", "MODEL", "--ranks", "2", "--layers", "2", "--strategy", "chunked,megabatch,global"),
        *("--steps", "3"),
    )
    sources = {"step_ms": "measured", "host_ms": "measured", "predicted_ms": "predicted", "speed_up": "measured"}

    def test_says_which_part_of_the_model_it_is(self):
        self.assertIn("only the first 2 layers (--layers 2)", self.browser.one(".subtitle").text)

    def test_findings_name_the_fastest(self):
        rows = {
            row["strategy"]: next(f["value"] for f in row["figures"] if f["key"] == "step_ms")
            for row in self.browser.data()["strategies"]
        }
        first = self.texts("#findings li")[0]
        self.assertTrue(first.startswith(min(rows, key=rows.get)), (first, rows))
        self.assertIn("measured, median of 3", first)
        self.assertIn("All 3 end with the same weights, bit for bit.", self.texts("#findings li"))


    # "wave 1…" stood in the spans of wave 10, in and out.
    def test_texts_in_spans_are_whole(self):
        b = self.browser
        for width in (390, 1280):
            b.open(self.page, width)
            b.script(
                """
                window.drawn = [];
                const plain = CanvasRenderingContext2D.prototype.fillText;
                CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
                  if (this.canvas.id === 'timeline-canvas') window.drawn.push(text);
                  return plain.call(this, text, ...rest);
                };"""
            )
            b.click("[aria-label='Show the whole step']")
            drawn = b.script("return window.drawn")
            self.assertIn("rank 0", drawn)
            self.assertEqual([text for text in drawn if "…" in text], [])


class SimulateLayout(LayoutTest, unittest.TestCase):
    name = "simulate"
    flags = (
        *("simulate", "moe-397b", "--mesh", "fsdp=128", "--cluster", "h100-ib", "--scratch-mib", "2048"),
        *("--strategy", "chunked,routed,global", "--layers", "8"),
    )
    sources = {"step_ms": "simulated", "bound_ms": "predicted", "imbalance": "predicted"}
    timeline_source = "simulated"

    def test_has_the_units_of_the_command(self):
        self.assertIn("only the first 8 layers (--layers 8)", self.browser.one(".subtitle").text)
        ratios = ("imbalance", "step_over_bound")  # without a unit; the command prints more digits
        self.assert_units_of_the_command(
            "#strategies td[data-key]" + "".join(f":not([data-key={key}])" for key in ratios)
        )


class TrainLayout(LayoutTest, unittest.TestCase):
    """As `make demo` makes it, with a smaller model."""

    name = "train"
    sources = {
        "optimizer_ms": "measured", "train_step_ms": "measured", "final_loss": "measured", "predicted_ms": "predicted"
    }  # fmt: skip

    @classmethod
    def make(cls):
        page, small = FOLDER / "layout-train.html", ("--layers", "2", "--width", "32", "--heads", "2", "--steps", "4")
        train = [MUSTER, "train", *small]
        run = lambda *flags: subprocess.run([*train, *flags], check=True, capture_output=True, text=True)
        others = {"one": ("--ranks", "1"), "padded": ("--ranks", "4", "--strategy", "chunked")}
        for name, flags in others.items():
            (FOLDER / f"layout-{name}.json").write_text(run(*flags, "--json").stdout)
        cls.others = [json.loads((FOLDER / f"layout-{name}.json").read_text()) for name in others]
        beside = ",".join(str(FOLDER / f"layout-{name}.json") for name in others)
        cls.said = run("--ranks", "4", "--compare", beside, "--html", str(page)).stdout
        return page

    def test_first_bars_are_of_the_trainings(self):
        bars = self.browser.script("return document.querySelector('.bars').parentElement.id")
        self.assertEqual(bars, "comparison-0")
        shown = [
            float(cell.get_attribute("data-value")) / 1e6
            for cell in self.browser.all("#comparison-0 [data-key=optimizer_ms]")
        ]
        self.assertEqual(len(shown), 3)
        for value, other in zip(shown, self.others):
            self.assertAlmostEqual(value, other["optimizer_ms"], delta=1e-6)

    def test_findings_are_of_trainings_on_the_same_ranks(self):
        first, padding, losses, _ = self.texts("#findings li")
        self.assertIn("the shortest optimizer step", first)
        self.assertIn("(measured, median)", first)
        self.assertNotIn("fsdp=1", first)
        self.assertRegex(padding, r"chunked \(layout-padded\) [\d.]+ .*; fsdp=4, global none\.$")
        self.assertEqual(losses, "All 3 trainings have the same 4 losses, bit for bit.")
        for line in (first, padding, losses):
            self.assertIn(line, self.said)

    # "Predicted" stood below curves that had been measured.
    def test_what_was_measured_is_not_called_predicted(self):
        for number in (0, 1):
            self.assertEqual(self.browser.attribute(f"#curves-{number} h2 .source", "data-source"), "measured")
            self.assertNotIn("redicted", self.browser.one(f"#curves-{number}").text)
        for part in ("findings", "facts", "comparison-0", "timeline"):
            self.assertNotIn("redicted", self.browser.one(f"#{part}").text)
        self.assertEqual(self.browser.attribute("#strategies h2 .source", "data-source"), "predicted")


class RunsLayout(LayoutTest, unittest.TestCase):
    """Several runs with held-out losses on the way."""

    name = "runs"
    flags = (
        *("train", "--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--batch", "8"),
        *("--steps", "16", "--runs", "3", "--eval-every", "2", "--target", "4"),
    )
    sources = {"mean": "measured"}

    # The figures of the first seed stood for all.
    def test_figures_are_of_all_runs(self):
        mean, deviation = re.search(r"3 runs: loss ([\d.]+) \(standard deviation ([\d.]+)\)", self.said).groups()
        words = f"mean of 3 runs, standard deviation {deviation}"
        self.assertIn(words, self.browser.one("#facts [data-key=mean]").text)
        self.assertEqual(self.browser.one("#facts [data-key=mean] dd").text, mean)
        p = re.search(r"t-test, loss below 4: p = (\S+)", self.said).group(1)
        held_out, test = self.texts("#findings li")[-2:]
        self.assertTrue(held_out.startswith(f"The held-out loss is {mean} nats per token ({words})."), held_out)
        self.assertEqual(test, f"A mean this low has p = {p} if the true mean is the target 4.")

    # The axis began with the loss before the first step, and the band was thinner than the line.
    def test_the_axis_fits_the_band(self):
        b = self.browser
        chart = next(chart for chart in b.data()["charts"] if chart["title"] == "Held-out loss")
        (curve,) = chart["curves"]
        self.assertEqual(chart["fit_from"], 4)
        part = f"#curves-{b.data()['charts'].index(chart)}"
        self.assertIn("from step 4 on", b.one(f"{part} .lead").text)
        path = b.script("return document.querySelector(arguments[0] + ' .frame .curve').getAttribute('d')", part)
        self.assertEqual(b.script("return getComputedStyle(document.querySelector('.frame')).overflow"), "hidden")
        frame = {k: float(b.attribute(f"{part} .frame", k)) for k in ("y", "height")}
        heights = [float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=[ML]|$)", path)]
        self.assertLess(heights[0], frame["y"])
        for x, height in zip(curve["x"], heights):
            if x >= 4:
                self.assertGreater(height, frame["y"])
                self.assertLess(height, frame["y"] + frame["height"])
        b.script("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        deviation = (curve["high"][-1] - curve["low"][-1]) / 2
        self.assertEqual(self.texts(f"{part} td")[-1], f"{curve['y'][-1]:.6g} ± {deviation:.3g}")
        self.assertIn("±", b.hover(f"{part} svg.curves", 0.9, 0.5))


class VerifyLayout(LayoutTest, unittest.TestCase):
    name = "verify"
    flags = ("verify", "MODEL", "--ranks", "3", "--strategy", "global,chunked", "--waves", "0,2")
    sources = {"error": "measured"}

    def test_findings_are_of_all_cases(self):
        self.assertIn("All 3 cases give the same weights as one rank, bit for bit.", self.texts("#findings li"))
        self.assertEqual(len(self.browser.all("#comparison-0 tbody tr")), 3)
        self.assertEqual(self.texts("#comparison-0 [data-key=bitwise_equal]"), ["yes"] * 3)


class TuneLayout(LayoutTest, unittest.TestCase):
    name = "tune"
    flags = ("tune", "--ranks", "1", "-o", "layout-tuned.json")
    sources = {"gflops": "measured", "batch_ns": "measured"}

    def test_says_what_was_not_measured(self):
        self.assertIn("Exchanges were not measured", " ".join(self.texts("#findings li")))
        tile = self.browser.one("#facts [data-key=intra_node_mbps]")
        self.assertEqual(tile.find_elements("css selector", ".source"), [])
        self.assertIn("not measured", tile.text)


class SampleLayout(LayoutTest, unittest.TestCase):
    name = "sample"
    timeline_source = "simulated"

    # "exchange in" and "other exchanges" had the same orange.
    def test_colours_of_spans_differ_for_every_eye(self):
        b = self.browser
        for scheme in ("light", "dark"):
            b.medium("", scheme)
            names = ["surface", *(f"span-{name}" for name in sum(LANES, []))]
            colours = {name: rgb(css) for name, css in b.script(COLOURS, names)}
            for lane, least in zip(LANES, (12, 20)):
                for one, other in itertools.combinations(lane, 2):
                    apart = difference(colours[f"span-{one}"], colours[f"span-{other}"])
                    self.assertGreater(apart, least, (scheme, one, other))
                for name in lane:
                    most = 1.4 if name == "waiting" else 2.2  # waiting is to stand back
                    self.assertGreater(contrast(colours[f"span-{name}"], colours["surface"]), most, (scheme, name))

    @classmethod
    def make(cls):
        page = FOLDER / "layout-sample.html"
        subprocess.run([SAMPLE_PAGE, str(page), "16"], check=True)
        return page


if __name__ == "__main__":
    main()
