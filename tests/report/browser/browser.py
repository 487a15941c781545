"""Headless Chromium, and what a reader does with a report: points, clicks, presses keys, prints."""

import base64
import json
import pathlib
import shutil
import tempfile

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait


class Browser:
    def __init__(self, screenshots: pathlib.Path):
        self.screenshots = screenshots
        screenshots.mkdir(parents=True, exist_ok=True)
        self._profile = tempfile.mkdtemp(prefix="muster-browser-")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--force-color-profile=srgb",
            f"--user-data-dir={self._profile}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)

    def close(self):
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, path: pathlib.Path, width=1280):
        self.size(width)
        self.medium("")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())
        WebDriverWait(self.driver, 20).until(
            lambda d: d.execute_script("return document.documentElement.dataset.drawn")
        )

    def size(self, width, height=900):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def medium(self, media, scheme="light"):
        """`media` is "print" or, for the screen, empty."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def settle(self):
        """Waits until the page has been drawn again after its width or medium changed."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))"
        )

    def shoot(self, name):
        """The whole page, as it is now."""
        size = self.driver.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        (self.screenshots / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, name):
        printed = self.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True, "preferCSSPageSize": True})
        data = base64.b64decode(printed["data"])
        (self.screenshots / f"{name}.pdf").write_bytes(data)
        return data

    def complaints(self):
        """What the console said since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self):
        """Whatever the page asked for but itself. Chromium's own start page asks for things, too."""
        page = self.driver.current_url.split("#")[0]
        urls = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            url = message["params"]["request"]["url"]
            if message["params"]["documentURL"].split("#")[0] == page and not url.startswith(("data:", page)):
                urls.append(url)
        return urls

    # Elements.
    def one(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def data(self):
        return json.loads(self.script("return document.getElementById('data').textContent"))

    def attribute(self, css, name):
        return self.one(css).get_attribute(name)

    def click(self, css):
        element = self.one(css)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def pick(self, css, text):
        Select(self.one(css)).select_by_visible_text(text)

    def keys(self, css, *keys):
        self.script("arguments[0].focus({preventScroll: true})", self.one(css))
        ActionChains(self.driver).send_keys(*keys).perform()

    def chord(self, css, modifier, key):
        self.script("arguments[0].focus({preventScroll: true})", self.one(css))
        ActionChains(self.driver).key_down(modifier).send_keys(key).key_up(modifier).perform()

    # The mouse, at shares of an element's width and height.
    def _place(self, css, across, down):
        element = self.one(css)
        # Scrolling hides the tooltip, two frames later at most.
        self.driver.execute_async_script(
            """
            const [element, done] = arguments;
            element.scrollIntoView({block: 'center'});
            requestAnimationFrame(() => requestAnimationFrame(() => done()));""",
            element,
        )
        box = self.script(
            "const b = arguments[0].getBoundingClientRect(); return [b.left, b.top, b.width, b.height]", element
        )
        return box[0] + box[2] * across, box[1] + box[3] * down

    def _mouse(self, kind, place, **more):
        event = {"type": kind, "x": place[0], "y": place[1], **more}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def hover(self, css, across, down):
        """Returns what the tooltip says; empty if there is none."""
        self._mouse("mouseMoved", self._place(css, across, down))
        return self.script("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText")

    def press(self, css, across, down):
        place = self._place(css, across, down)
        for kind in ("mousePressed", "mouseReleased"):
            self._mouse(kind, place, button="left", clickCount=1)

    def drag(self, css, start, end):
        self._mouse("mousePressed", self._place(css, *start), button="left", clickCount=1)
        self._mouse("mouseMoved", self._place(css, *end), button="left", buttons=1)
        self._mouse("mouseReleased", self._place(css, *end), button="left", clickCount=1)

    def wheel(self, css, across, down, delta):
        self._mouse("mouseWheel", self._place(css, across, down), deltaX=0, deltaY=delta)
