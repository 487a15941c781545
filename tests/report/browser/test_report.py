"""Opens reports in headless Chromium, clicks through every part, and compares what they show with --json.

Usage: test_report.py MUSTER SAMPLE_PAGE FOLDER. Screenshots and reports stay in FOLDER.
"""

import json
import re
import subprocess
import unittest

from reports import FOLDER, MODEL, ReportTest, SAMPLE_PAGE, close_browser, main, muster, open_browser
from selenium.webdriver.common.keys import Keys

setUpModule, tearDownModule = open_browser, close_browser


class PlanReport(ReportTest, unittest.TestCase):
    arguments = ("plan", "gpt2-small", "--mesh", "fsdp=8")

    @classmethod
    def make(cls):
        page = FOLDER / "plan.html"
        cls.json = muster(*cls.arguments, "--html", str(page))
        return page

    def test_figures_are_those_of_json(self):
        facts = {**self.json, "plan_ms": float(self.browser.attribute("[data-key=plan_ms]", "data-value")) / 1e6}
        self.assert_figures("#facts", facts)
        self.assertEqual(self.browser.one("h1").text, "gpt2-small on 8 ranks")
        self.assertIn(self.json["hash"], self.browser.one(".subtitle").text)

    def test_strategies_are_those_of_other_plans(self):
        names = [row.get_attribute("data-strategy") for row in self.browser.all("#strategies tbody tr")]
        self.assertEqual(set(names), {"global", "per_matrix", "chunked", "grouped", "megabatch", "routed", "layerwise"})
        for name in names:
            self.assert_figures(f"#strategies tr[data-strategy={name}]", muster(*self.arguments, "--strategy", name))

    def test_bars_show_padding(self):
        b = self.browser
        width = lambda strategy, kind: float(
            re.search(r"[\d.]+", b.one(f"#strategy-bars [data-strategy={strategy}] .{kind}").get_attribute("style"))[0]
        )
        b.pick("#strategies select", "Bytes and padding")
        self.assertEqual(width("global", "padding"), 0)
        sent = {name: muster(*self.arguments, "--strategy", name) for name in ("chunked", "global")}
        self.assertAlmostEqual(
            width("chunked", "padding") / width("chunked", "payload"),
            sent["chunked"]["padding_bytes"] / (sent["chunked"]["bytes_sent_total"] - sent["chunked"]["padding_bytes"]),
            places=3,
        )
        b.pick("#strategies select", "Collectives")
        self.assertIn(str(sent["global"]["collectives"]), b.one("#strategy-bars [data-strategy=global] .bar-text").text)

    def test_loads_before_and_after(self):
        b = self.browser
        slowest = lambda name: float(b.attribute(f"#loads [data-strategy='{name}']", "data-slowest"))
        for name in ("chunked", "global"):
            self.assertAlmostEqual(
                slowest(name), muster(*self.arguments, "--strategy", name)["slowest_rank_ms"] * 1e6, delta=1
            )
        b.click("#strategies tr[data-strategy=routed] button")
        self.assertAlmostEqual(
            slowest("routed"), muster(*self.arguments, "--strategy", "routed")["slowest_rank_ms"] * 1e6, delta=1
        )
        self.assertEqual(b.attribute("#strategies tr[data-strategy=routed] button", "aria-pressed"), "true")
        rank = self.json["rank_table"][0]
        self.assertRegex(b.hover("#loads-chart", 0.1, 0.2), r"Rank 0\n.*chunked")
        self.assertIn("routed", b.hover("#loads-chart", 0.1, 0.2))
        self.assertEqual(rank["rank"], 0)
        b.keys("#loads-chart", Keys.ARROW_RIGHT)
        self.assertIn("Rank 1", b.one("#spoken").get_attribute("textContent"))
        b.click("#loads-sorted")
        self.assertIn("Place 1", b.hover("#loads-chart", 0.1, 0.2))

    def test_map_opens_down_to_matrices(self):
        b = self.browser
        shown = b.data()["maps"][0]
        self.assertEqual(sum(count for c in shown["classes"] for _, count in c["layers"]), self.json["matrices"])
        self.assertEqual(len(shown["owner"]), self.json["matrices"])
        classes = len(shown["classes"])
        self.assertEqual(len(b.all("#map .map-label")), classes)
        self.assertRegex(b.hover("#map-canvas", 0.05, 0.3), r"rank 0: ")
        b.click("#map .map-label")
        self.assertEqual(b.attribute("#map-canvas", "data-level"), "1")
        self.assertEqual(int(b.attribute("#map-canvas", "data-rows")), len(shown["classes"][0]["layers"]))
        self.assertIn("owned by rank", b.hover("#map-canvas", 0.05, 0.5))
        b.click("#map .crumbs button")
        self.assertEqual(b.attribute("#map-canvas", "data-level"), "0")
        b.keys("#map-canvas", Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ENTER)
        self.assertEqual(b.attribute("#map-canvas", "data-level"), "1")
        b.keys("#map-canvas", Keys.BACKSPACE)
        self.assertEqual(b.attribute("#map-canvas", "data-level"), "0")

    def test_waves_are_those_of_json(self):
        for index, wave in enumerate(self.json["wave_table"]):
            self.assert_figures(f"#wave-table [data-wave='{index}']", wave)

    def test_looks(self):
        self.look("plan")


class LargePlanReport(ReportTest, unittest.TestCase):
    arguments = ("plan", "moe-397b", "--mesh", "fsdp=2048", "--scratch-mib", "2048")

    @classmethod
    def make(cls):
        page = FOLDER / "plan-large.html"
        cls.json = muster(*cls.arguments, "--html", str(page))
        return page

    def test_is_small_and_true(self):
        self.assertLess(self.page.stat().st_size, 1_000_000)
        facts = {**self.json, "plan_ms": float(self.browser.attribute("[data-key=plan_ms]", "data-value")) / 1e6}
        self.assert_figures("#facts", facts)
        self.assertEqual(len(self.browser.data()["maps"][0]["owner"]), self.json["matrices"])
        self.assertIn("per_matrix is left out", self.browser.one(".notes").text)

    def test_map_of_62_thousand_matrices(self):
        b = self.browser
        b.script(
            "[...document.querySelectorAll('#map .map-label')].find((e) => e.textContent.includes('experts')).click()"
        )
        self.assertEqual(b.attribute("#map-canvas", "data-rows"), "60")
        b.click("#map .map-label")
        self.assertEqual(
            (b.attribute("#map-canvas", "data-level"), b.attribute("#map-canvas", "data-rows")), ("2", "512")
        )
        shown = b.data()["maps"][0]
        first = 0
        for c in shown["classes"]:
            if "experts" in c["name"]:
                break
            first += sum(count for _, count in c["layers"])
        self.assertIn(
            f"owned by rank {shown['owner'][first + 256]}",
            b.hover("#map-canvas", 0.5, (22 + 256.5 * 3) / (24 + 512 * 3)),
        )
        b.shoot("plan-large-matrices")

    def test_looks(self):
        self.look("plan-large")


class BenchReport(ReportTest, unittest.TestCase):
    canvas = "#timeline-canvas"

    @classmethod
    def make(cls):
        page, model = FOLDER / "bench.html", FOLDER / "small.model"
        model.write_text(json.dumps(MODEL))
        cls.json = muster(
            "bench", str(model), "--ranks", "2", "--strategy", "chunked,global", "--steps", "2", "--html", str(page)
        )
        return page

    def window(self):
        return [float(self.browser.attribute(self.canvas, f"data-{name}")) for name in ("t0", "t1", "r0", "r1")]

    def span(self):
        t0, t1, _, _ = self.window()
        return t1 - t0

    def test_figures_are_those_of_json(self):
        for row in self.json["strategies"]:
            self.assert_figures(f"#strategies tr[data-strategy={row['strategy']}]", row)

    def test_timeline_zooms_and_moves(self):
        b, whole = self.browser, self.span()
        b.wheel(self.canvas, 0.5, 0.5, -300)
        self.assertEqual(self.span(), whole)  # the page scrolls, until the timeline is clicked
        b.press(self.canvas, 0.5, 0.5)
        b.wheel(self.canvas, 0.5, 0.5, -300)
        self.assertLess(self.span(), whole)
        before = self.window()
        b.drag(self.canvas, (0.6, 0.5), (0.5, 0.5))
        self.assertGreater(self.window()[0], before[0])
        self.assertAlmostEqual(self.span(), before[1] - before[0], delta=1)
        b.click("[aria-label='Show the whole step']")
        self.assertEqual(self.span(), whole)
        b.click("[aria-label='Zoom in on time']")
        self.assertAlmostEqual(self.span(), whole / 2, delta=1)
        b.keys(self.canvas, "+")
        self.assertAlmostEqual(self.span(), whole / 4, delta=1)
        b.keys(self.canvas, Keys.ARROW_RIGHT, "0")
        self.assertEqual(self.window()[:2], [0, whole])
        b.click("[aria-label='Show fewer ranks, larger']")
        self.assertEqual(self.window()[3] - self.window()[2], 1)

    def test_timeline_says_what_is_there(self):
        b = self.browser
        b.chord(self.canvas, Keys.SHIFT, Keys.ARROW_RIGHT)
        first = b.data()["timelines"][1]["labels"][0][0]
        self.assertRegex(b.one("#spoken").get_attribute("textContent"), f"^{re.escape(first)}, rank 0, .* from .* to ")
        said = {b.hover(self.canvas, 0.06 + 0.009 * i, 0.2) for i in range(100)}
        self.assertTrue(any("rank 0" in text for text in said))
        self.assertEqual(len(b.all("#timeline-table tbody tr")), 2)

    def test_choosing_a_strategy_shows_its_step(self):
        b = self.browser
        self.assertEqual(b.attribute(self.canvas, "data-step"), "global")
        b.click("#strategies tr[data-strategy=chunked] button")
        self.assertEqual(b.attribute(self.canvas, "data-step"), "chunked")
        self.assertEqual(b.attribute("#map-canvas", "data-strategy"), "chunked")
        b.pick("#timeline select", "global")
        self.assertEqual(b.attribute(self.canvas, "data-step"), "global")

    def test_looks(self):
        self.look("bench")


class TrainReport(ReportTest, unittest.TestCase):
    """As `make demo` makes it, but short: one rank, four, and four with another strategy."""

    @classmethod
    def make(cls):
        page, steps = FOLDER / "train.html", ("train", "--steps", "8")
        others = []
        for name, arguments in {"one": (), "four": ("--ranks", "4")}.items():
            others.append(FOLDER / f"train-{name}.json")
            others[-1].write_text(json.dumps(muster(*steps, *arguments)))
        beside = ",".join(map(str, others))
        cls.json = muster(
            *steps, "--ranks", "4", "--strategy", "megabatch", "--compare", beside, "--report", str(page)
        )
        return page

    def test_figures_are_those_of_json(self):
        self.assertTrue(self.json["same_losses"])
        shown = {**self.json, "steps": 8, "tokens_per_s": round(self.json["tokens_per_s"])}
        self.assert_figures("#facts", shown)
        self.assertEqual(self.browser.one("h1").text, "A small GPT learns on 4 ranks")

    def test_curves_coincide(self):
        b = self.browser
        names = ["fsdp=1, global (train-one)", "fsdp=4, global (train-four)", "fsdp=4, megabatch"]
        self.assertEqual([c["name"] for c in b.data()["charts"][0]["curves"]], names)
        paths = [b.one(f"path[data-curve='{name}']").get_attribute("d") for name in names]
        self.assertEqual(len(set(paths)), 1)
        for name in names[1:]:
            self.assertIn(f"the same as {names[0]}, every value", b.one(f"button[data-curve='{name}']").text)
        losses = b.data()["charts"][0]["curves"][2]["y"]
        self.assertEqual(losses, self.json["losses"])
        b.click(f"button[data-curve='{names[0]}']")
        self.assertEqual(b.all(f"path[data-curve='{names[0]}']"), [])
        self.assertIn("step 8", b.hover("svg.curves", 1.0 - 16 / 1000, 0.5))

    def test_timeline_has_the_whole_step_of_every_rank(self):
        b = self.browser
        self.assertEqual(len(b.all("#timeline-table tbody tr")), 4)
        labels = [name for name, *_ in b.data()["timelines"][0]["labels"]]
        for name in ("gather weights", "forward and backward", "sum gradients"):
            self.assertIn(name, labels)
        said = {b.hover("#timeline-canvas", 0.3, 0.01 * i) for i in range(5, 40)}
        self.assertTrue(any("forward and backward\nrank 0" in text for text in said), said)
        b.click("[aria-label='Zoom in on time']")
        b.click("#map .map-label")
        self.assertEqual(b.attribute("#map-canvas", "data-level"), "1")

    def test_looks(self):
        self.look("train")


class SimulateReport(ReportTest, unittest.TestCase):
    @classmethod
    def make(cls):
        page = FOLDER / "simulate.html"
        cls.json = muster(
            *("simulate", "moe-397b", "--mesh", "fsdp=128", "--cluster", "h100-ib", "--scratch-mib", "2048"),
            *("--strategy", "chunked,routed,global", "--html", str(page)),
        )
        return page

    def test_figures_are_those_of_json(self):
        for row in self.json["strategies"]:
            shown = {**row, "step_over_bound": row["step_ms"] / row["bound_ms"]}
            self.assert_figures(f"#strategies tr[data-strategy={row['strategy']}]", shown)
        self.assertEqual(row["strategy"], "global")  # the fastest
        self.assert_figures("#facts", shown)

    def test_choosing_a_strategy_shows_its_step(self):
        b = self.browser
        self.assertEqual(b.attribute("#timeline-canvas", "data-step"), "global")
        b.click("#strategies tr[data-strategy=chunked] button")
        self.assertEqual(b.attribute("#timeline-canvas", "data-step"), "chunked")
        self.assertEqual(b.attribute("#map-canvas", "data-strategy"), "chunked")
        self.assertIn("h100-ib, simulated", b.one("h1").text)

    def test_looks(self):
        self.look("simulate")


class SampleReport(ReportTest, unittest.TestCase):
    @classmethod
    def make(cls):
        page = FOLDER / "sample.html"
        subprocess.run([SAMPLE_PAGE, str(page), "64"], check=True)
        return page

    def test_names_stay_names(self):
        self.assertEqual(self.browser.one("h1").text, "</script><script>alert(1)</script> on 64 ranks")

    def test_figures_read_well(self):
        text = lambda key: self.browser.one(f"#facts [data-key={key}] dd").text
        self.assertEqual(
            [
                text(key)
                for key in (
                    "final_loss",
                    "optimizer_share",
                    "predicted_ms",
                    "bytes_sent_total",
                    "collectives",
                    "imbalance",
                )
            ],
            ["1.7031", "6.3 %", "5.76 ms", "192 MiB", "6", "1.97×"],
        )

    def test_timeline_of_more_ranks_than_pixels(self):
        b = self.browser
        b.medium("")
        page = FOLDER / "sample-large.html"
        subprocess.run([SAMPLE_PAGE, str(page), "4096"], check=True)
        self.assertLess(page.stat().st_size, 5_000_000)
        b.open(page)
        self.assertRegex(b.one("#timeline-note").text, r"One rank in \d+ is drawn")
        for _ in range(5):
            b.click("[aria-label='Show fewer ranks, larger']")
        self.assertNotIn("is drawn;", b.one("#timeline-note").text)
        self.assertRegex(b.hover("#timeline-canvas", 0.5, 0.5), r"rank 20\d\d")

    def test_curves_that_are_the_same_take_turns(self):
        b = self.browser
        path = lambda name: b.one(f"path[data-curve='{name}']")
        ranks = [path(f"normuon, {n}") for n in ("1 rank", "4 ranks")]
        self.assertEqual(ranks[0].get_attribute("d"), ranks[1].get_attribute("d"))
        self.assertNotEqual(*[r.get_attribute("stroke-dashoffset") for r in ranks])
        self.assertIsNone(path("muon").get_attribute("stroke-dasharray"))
        self.assertIn("the same as normuon, 1 rank, every value", b.one("button[data-curve='normuon, 4 ranks']").text)
        b.click("button[data-curve='normuon, 1 rank']")
        self.assertEqual(b.all("path[data-curve='normuon, 1 rank']"), [])
        self.assertIsNone(path("normuon, 4 ranks").get_attribute("stroke-dasharray"))
        self.assertEqual(path("adamw").get_attribute("d").count("M"), 2)  # a gap

    def test_curves_under_the_pointer(self):
        b = self.browser
        chart = b.data()["charts"][0]
        text = b.hover("svg.curves", 1.0 - 16 / 1000, 0.5)
        self.assertIn("step 200", text)
        self.assertIn(f"muon: {chart['curves'][2]['y'][200]:.6g}", text)
        b.keys("svg.curves", Keys.ARROW_LEFT)
        self.assertIn("step 199", b.one("#spoken").get_attribute("textContent"))

    def test_looks(self):
        self.look("sample")


if __name__ == "__main__":
    main()
