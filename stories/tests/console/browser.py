#!/usr/bin/env python3
"""Uses the console in Chromium as people do: by clicks, by keyboard alone, without scripts, on a phone.

    browser.py URL STEP [ARGUMENT...]

A step prints what it found and exits 1 with all problems. Environment: CHROMIUM (path), AXE (path of
axe.min.js), LOGIN (name:password; without it the console has to be open to all). It is called by the story
console_browser, which looks at the backend after each step.
"""

import contextlib
import os
import re
import sys
import time
import traceback
import urllib.parse

from playwright.sync_api import TimeoutError as PatienceError, sync_playwright

# As long as the stories wait: far more than a step takes on a busy machine.
PATIENCE_MS = 60_000
# Time for which a page that goes on by itself is looked at before it is opened again.
LOOK_MS = 3_000
PAUSE_FORM = "form[action='/lanes/pause']:has(input[name=shop]:not([type=hidden]))"
VIEWS = ["/", "/lanes", "/webhooks", "/dead", "/archive", "/shops", "/gaps", "/audit", "/doctor"]
# Rules of axe: WCAG 2.2 A and AA, and what is known to be good practice.
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 320, "height": 640}
# Size of a picture for the docs.
PICTURE = {"width": 1100, "height": 700}
PICTURES_BYTES_MAX = 700_000
# Runs before the page's own scripts: notes what the policy forbids.
NOTE_VIOLATIONS = """
  window.violations = [];
  document.addEventListener('securitypolicyviolation', (event) =>
    window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""
TABBABLE = "a[href], button:not([disabled]), input:not([type=hidden]):not([disabled]), select, textarea, [tabindex='0']"


class Console:
    """A browser and the console that it looks at, with all that was wrong."""

    def __init__(self, browser, url):
        self.browser = browser
        self.url = url.rstrip("/")
        self.host = urllib.parse.urlsplit(url).netloc
        self.problems = []
        # Cookies after the login, which all pages share: logins are limited.
        self.session = None

    @contextlib.contextmanager
    def page(self, **options):
        """A page in a profile of its own, logged in."""
        options.setdefault("viewport", DESK)
        options.setdefault("reduced_motion", "reduce")
        context = self.browser.new_context(storage_state=self.session, **options)
        context.set_default_timeout(PATIENCE_MS)
        context.add_init_script(NOTE_VIOLATIONS)
        context.route("**/*", self.let_through)
        page = context.new_page()
        page.on("dialog", lambda dialog: (self.wrong(page, "a dialog opened"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.wrong(page, f"a script failed: {error}"))
        page.on("console", lambda message: self.on_message(page, message))
        page.on("requestfailed", lambda request: self.on_failure(page, request))
        try:
            self.log_in(page)
            yield page
        finally:
            context.close()

    def let_through(self, route):
        """Lets requests to the console through, and no others."""
        if urllib.parse.urlsplit(route.request.url).netloc == self.host:
            route.continue_()
        else:
            self.problems.append(f"a request to another host: {route.request.url}")
            route.abort()

    def wrong(self, page, what):
        self.problems.append(f"{urllib.parse.urlsplit(page.url).path}: {what}")

    def on_message(self, page, message):
        # A page that answers 404 or 409 as it should is reported too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.wrong(page, f"the browser's console says: {message.text}")

    def on_failure(self, page, request):
        # Leaving a page ends its stream of events.
        if "/events/" not in request.url and "ERR_ABORTED" not in (request.failure or ""):
            self.wrong(page, f"{request.url}: {request.failure}")

    def log_in(self, page):
        if "LOGIN" not in os.environ or self.session is not None:
            return
        name, password = os.environ["LOGIN"].split(":", 1)
        page.goto(self.url + "/login")
        page.fill("input[name=user]", name)
        page.fill("input[name=password]", password)
        page.locator("form[action='/login'] button[type=submit]").click()
        page.wait_for_url(lambda url: not urllib.parse.urlsplit(url).path.startswith("/login"))
        self.session = page.context.storage_state()

    def open(self, page, path):
        """Opens a page. While Redis stands still, the console answers 503 and says to try again soon."""
        end = time.monotonic() + PATIENCE_MS / 1000
        answer = page.goto(self.url + path, wait_until="load")
        while answer is not None and answer.status == 503 and time.monotonic() < end:
            print(f"{path} answered 503 and is opened again: {page.locator('[role=alert]').all_inner_texts()}")
            page.wait_for_timeout(500)
            answer = page.goto(self.url + path, wait_until="load")
        if answer is None or answer.status != 200:
            self.wrong(page, f"{path} answers {answer and answer.status}")
        page.locator("h1").first.wait_for()

    def check_policy(self, page):
        for violation in page.evaluate("window.violations || []"):
            self.wrong(page, f"the policy forbids: {violation}")

    def check_axe(self, page, how):
        with open(os.environ["AXE"], encoding="utf-8") as script:
            page.evaluate(script.read())
        found = page.evaluate(
            "(rules) => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", RULES)
        for violation in found["violations"]:
            nodes = [node["html"][:200] for node in violation["nodes"][:3]]
            self.wrong(page, f"axe ({how}): {violation['id']}: {violation['help']}: {nodes}")

    def check_width(self, page):
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > PHONE["width"]:
            widest = page.evaluate(
                "(most) => [...document.querySelectorAll('body *')]"
                ".filter((one) => one.getBoundingClientRect().right > most)"
                ".slice(0, 3).map((one) => one.outerHTML.slice(0, 120))", PHONE["width"])
            self.wrong(page, f"{wide} px wide on a phone of {PHONE['width']}: {widest}")

    def links(self, page, path, selector):
        """Links of a page, at least one. A list that takes long goes on by itself, and what is searched for in
        the background is there after another look."""
        found = page.locator(selector)
        for _ in range(PATIENCE_MS // LOOK_MS):
            self.open(page, path)
            with contextlib.suppress(PatienceError):
                found.first.wait_for(timeout=LOOK_MS)
                return found
        raise AssertionError(f"{path} has no {selector}: {page.locator('main').inner_text()}")

    def paths(self, page, held=None):
        """The views, and the page of a dead letter. With a shop whose webhooks are held, also its page and the page of
        one of them. Webhooks of other shops could be delivered before their page is opened."""
        lists = [("/dead", "/dead/")]
        if held is not None:
            lists += [(f"/webhooks?shop={urllib.parse.quote(held)}", "/webhooks/"), ("/shops", f"/shops/{held}")]
        found = list(VIEWS)
        for path, link in lists:
            found.append(self.links(page, path, f"main a[href^='{link}']").last.get_attribute("href"))
        return found


def views(console, held, *more):
    """Each view in light and dark, on a phone, and without scripts, for one who may see the content of webhooks."""
    with console.page() as page:
        paths = console.paths(page, held)
        webhook = next(path for path in paths if path.startswith("/webhooks/"))
        content = console.links(page, webhook, "main a[href$='/content']")
        paths += [content.first.get_attribute("href"), *more]
    seen = {}
    for scheme in ["light", "dark"]:
        with console.page(color_scheme=scheme) as page:
            for path in paths:
                console.open(page, path)
                seen[path] = shape(console, page)
                console.check_axe(page, scheme)
                console.check_policy(page)
    with console.page(viewport=PHONE, has_touch=True, is_mobile=True) as page:
        for path in paths:
            console.open(page, path)
            console.check_width(page)
    with console.page() as scripted, console.page(java_script_enabled=False) as page:
        for path in paths:
            # What is searched for in the background is there after another look, and a webhook may have been tried
            # again since the first one.
            for _ in range(20):
                console.open(page, path)
                without = shape(console, page)
                if seen[path] == without:
                    break
                page.wait_for_timeout(300)
                console.open(scripted, path)
                seen[path] = shape(console, scripted)
            if seen[path] != without:
                console.problems.append(f"{path}: with scripts {seen[path]}, without {without}")
    print(f"{len(paths)} views in light and dark, on a phone and without scripts: {' '.join(paths)}")


def shape(console, page):
    """What of a page can be read."""
    if not page.locator("main").inner_text().strip():
        console.wrong(page, "nothing to read")
    return (page.locator("h1").first.inner_text(), page.locator("main h2").count(),
            page.locator("main table").count() > 0, page.locator("nav a").count())


def job_of(page):
    return int(re.search(r"/jobs/(\d+)", page.url).group(1))


def wait_for_phase(page, *phases):
    """Waits until the page itself shows one of these phases, with or without scripts."""
    wanted = ", ".join(f"[data-phase='{phase}']" for phase in phases)
    end = time.monotonic() + PATIENCE_MS / 1000
    while not page.locator(wanted).count():
        if time.monotonic() > end:
            raise AssertionError(f"{page.url}: not {phases}: {page.locator('main').inner_text()}")
        page.wait_for_timeout(200)


def count_and_confirm(page, path, action, number):
    """Orders a change: counts by the form of a list, types the number, and confirms."""
    page.goto(page_url(page, path))
    page.locator(f"form[action='{action}']").last.locator("button[type=submit]").first.click()
    confirm(page, number)


def confirm(page, number):
    """Waits for the count of a dry run, types the number, and confirms."""
    page.wait_for_url("**/jobs/*")
    counting = job_of(page)
    wait_for_phase(page, "counted")
    page.locator("input[name=expected]").fill(str(number))
    page.locator("form:has(input[name=expected]) button[type=submit]").click()
    wait_until_left(page, counting)


def page_url(page, path):
    parts = urllib.parse.urlsplit(page.url)
    return f"{parts.scheme}://{parts.netloc}{path}"


def wait_until_left(page, job):
    end = time.monotonic() + PATIENCE_MS / 1000
    while f"/jobs/{job}" in page.url and time.monotonic() < end:
        page.wait_for_timeout(50)


def replay(console, shop, number):
    """Dead letters of a shop are delivered again, once the right number is typed."""
    path = f"/dead?shop={urllib.parse.quote(shop)}"
    with console.page() as page:
        console.open(page, "/")
        count_and_confirm(page, path, "/dead/replay", int(number) + 1)
        text = page.locator("main").inner_text()
        if "/jobs/" in page.url:
            wait_for_phase(page, "failed")
            text = page.locator("main").inner_text()
        print(f"a wrong number: {text.splitlines()[0]}")
        count_and_confirm(page, path, "/dead/replay", number)
        wait_for_phase(page, "waiting")
        page.locator("form[action$='/undo'] button").click()
        wait_for_phase(page, "undone")
        count_and_confirm(page, path, "/dead/replay", number)
        wait_for_phase(page, "done")
        console.check_policy(page)
        print(f"replayed: {page.locator('[data-phase]').inner_text()}")


def replay_without_scripts(console, shop, number):
    """The same without scripts: the page loads itself again."""
    with console.page(java_script_enabled=False) as page:
        console.open(page, "/")
        count_and_confirm(page, f"/dead?shop={urllib.parse.quote(shop)}", "/dead/replay", number)
        wait_for_phase(page, "done")


def chosen(console, verb, shop, number):
    """The first dead letters of a shop are chosen by their boxes, counted, and replayed (without scripts) or dropped."""
    number = int(number)
    with console.page(java_script_enabled=verb == "drop") as page:
        console.open(page, f"/dead?shop={urllib.parse.quote(shop)}")
        button = f"button[formaction='/dead/{verb}']"
        page.locator(button).first.click()
        page.locator("[role=alert]").wait_for()
        told = page.locator("main").inner_text()
        if "choose dead letters" not in told:
            console.wrong(page, f"nothing is chosen: {told}")
        console.open(page, f"/dead?shop={urllib.parse.quote(shop)}")
        boxes = page.locator("#rows input[type=checkbox][name=ids]")
        if boxes.count() <= number:
            console.wrong(page, f"{boxes.count()} boxes: some should be left out")
        for place in range(number):
            boxes.nth(place).check()
        page.locator(button).first.click()
        confirm(page, number)
        wait_for_phase(page, "done")
        if verb == "drop":
            console.check_policy(page)
        print(f"chosen for a {verb}: {page.locator('[data-phase]').inner_text()}")


def archive(console, shop, since, number):
    """What the archive holds of a shop is counted, undone once, and delivered again."""
    number = int(number)
    with console.page() as page:
        for is_undone in [True, False]:
            console.open(page, "/")
            page.locator("nav a[href='/archive']").click()
            page.wait_for_url("**/archive")
            form = page.locator("form[action='/archive/replay']")
            form.locator("input[name=shop]").fill(shop)
            form.locator("input[name=since]").fill(since)
            form.locator("button[type=submit]").click()
            confirm(page, number)
            if is_undone:
                wait_for_phase(page, "waiting")
                page.locator("form[action$='/undo'] button").click()
                wait_for_phase(page, "undone")
        wait_for_phase(page, "done")
        console.check_policy(page)
        print(f"replayed from the archive: {page.locator('[data-phase]').inner_text()}")


def no_archive(console):
    """A console without an archive says how to set one up."""
    with console.page() as page:
        console.open(page, "/archive")
        told = page.locator("main").inner_text()
        if "ARCHIVE_URL" not in told or page.locator("form[action='/archive/replay']").count():
            console.wrong(page, f"no way to an archive: {told}")


def pause(console, shop):
    with console.page() as page:
        console.open(page, "/lanes")
        form = page.locator(PAUSE_FORM)
        page.locator(f"details:has({PAUSE_FORM}) summary").click()
        form.locator("input[name=shop]").fill(shop)
        form.locator("button[type=submit]").first.click()
        page.wait_for_url("**/lanes?*")
        wait_for_pause(page, shop, True)
        console.check_policy(page)


def resume_form(shop):
    return f"form[action='/lanes/resume']:has(input[name=shop][value='{shop}'])"


def wait_for_pause(page, shop, is_paused):
    """Waits until the list of pauses shows it. The state of the cell is read once a second."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while (page.locator(resume_form(shop)).count() > 0) != is_paused:
        if time.monotonic() > end:
            raise AssertionError(f"{shop}: {page.locator('main').inner_text()}")
        page.wait_for_timeout(500)
        page.reload()


def resume(console, shop):
    with console.page() as page:
        console.open(page, "/lanes")
        page.locator(f"{resume_form(shop)} button").first.click()
        page.wait_for_url("**/lanes?*")
        wait_for_pause(page, shop, False)
        console.check_policy(page)


def drop(console, place, shop, number):
    """Drops dead letters (`dead`) or waiting webhooks (`webhooks`) of a shop."""
    with console.page() as page:
        console.open(page, "/")
        path = f"/{place}?shop={urllib.parse.quote(shop)}"
        count_and_confirm(page, path, f"/{place}/drop", number)
        wait_for_phase(page, "done")
        console.check_policy(page)


def live(console):
    """The overview changes by itself while webhooks come."""
    with console.page() as page:
        console.open(page, "/")
        main = page.locator("[data-live]").first
        texts = set()
        end = time.monotonic() + PATIENCE_MS / 1000
        while len(texts) < 3 and time.monotonic() < end:
            texts.add(main.inner_text())
            page.wait_for_timeout(300)
        if len(texts) < 3:
            console.wrong(page, "the overview does not change")
        console.check_policy(page)
        check_links_of_numbers(console, page)


def streams(console):
    """The overview goes on after an answer other than 200, and a page that nobody sees keeps no stream."""
    refused = []

    def refuse_first(route):
        if refused:
            route.fallback()
        else:
            refused.append(route.request.url)
            route.fulfill(status=503, body="")

    def is_stream(message):
        return "/events/overview" in message.url

    with console.page() as page:
        page.add_init_script("""
          window.streams = [];
          window.EventSource = class extends EventSource {
            constructor(...of) { super(...of); window.streams.push(this); }
          };
        """)
        page.route("**/events/overview", refuse_first)
        with page.expect_response(lambda answer: is_stream(answer) and answer.status == 200):
            console.open(page, "/")
        show(page, False)
        if page.evaluate("() => window.streams.some((one) => one.readyState !== EventSource.CLOSED)"):
            console.wrong(page, "a page that nobody sees keeps its stream")
        with page.expect_request(is_stream):
            show(page, True)
        console.check_policy(page)
    print(f"a stream that was refused {len(refused)} time was there again, and none while the page was hidden")


def show(page, is_shown):
    """Does what a browser does when its tab comes to the front, or goes to the back."""
    page.evaluate("""(isShown) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => !isShown });
      document.dispatchEvent(new Event('visibilitychange'));
    }""", is_shown)


def check_links_of_numbers(console, page):
    """Every number of the overview's figures links to what it counts."""
    bare = page.locator(".figures dd:not(:has(a))")
    numbers = [text for text in bare.all_inner_texts() if re.search(r"\d", text)]
    if numbers:
        console.wrong(page, f"numbers that lead nowhere: {numbers}")


def tab_to(console, page, selector, most=250):
    """Presses Tab until an element has the focus, which has to be seen."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            check_focus(console, page)
            return
    raise AssertionError(f"{page.url}: Tab does not reach {selector}")


def check_focus(console, page):
    is_seen = page.evaluate("""() => {
      const style = getComputedStyle(document.activeElement);
      return style.outlineStyle !== 'none' || style.boxShadow !== 'none';
    }""")
    if not is_seen:
        html = page.evaluate("document.activeElement.outerHTML.slice(0, 150)")
        console.wrong(page, f"the focus can't be seen on {html}")


def keyboard(console, shop, number, paused):
    """Everything by keyboard: skip the navigation, reach all that can be used, pause, replay."""
    with console.page() as page:
        for path in console.paths(page):
            console.open(page, path)
            reach_everything(console, page)
        console.open(page, "/")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        if not page.url.endswith("#main"):
            console.wrong(page, "the first Tab does not skip the navigation")
        console.open(page, "/")
        tab_to(console, page, "nav a[href='/lanes']")
        page.keyboard.press("Enter")
        page.wait_for_url("**/lanes")
        tab_to(console, page, "details:has(form[action='/lanes/pause']) summary")
        page.keyboard.press("Enter")
        tab_to(console, page, f"{PAUSE_FORM} input[name=shop]")
        page.keyboard.type(paused)
        page.keyboard.press("Enter")
        page.wait_for_url("**/lanes?*")
        wait_for_pause(page, paused, True)

        console.open(page, f"/dead?shop={urllib.parse.quote(shop)}")
        tab_to(console, page, "form[action='/dead/replay'] button")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/*")
        counting = job_of(page)
        wait_for_phase(page, "counted")
        tab_to(console, page, "input[name=expected]")
        page.keyboard.type(str(number))
        page.keyboard.press("Enter")
        wait_until_left(page, counting)
        wait_for_phase(page, "done")


def reach_everything(console, page):
    """Tab comes to every element that can be used, and leaves each again."""
    # The live part would be replaced while Tab goes through it.
    wanted = page.evaluate("""(tabbable) => [...document.querySelectorAll(tabbable)]
      .filter((one) => one.checkVisibility() && !one.closest('[data-live]') && one.tabIndex >= 0
        && (one.type !== 'radio' || one.checked))
      .map((one, place) => { one.dataset.wanted = place; return place; })""", TABBABLE)
    reached = set()
    for _ in range(len(wanted) + 200):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement.dataset.wanted")
        if place is not None:
            reached.add(int(place))
        if len(reached) == len(wanted):
            return
    html = page.evaluate("""(places) => places.map((place) =>
      document.querySelector(`[data-wanted='${place}']`)?.outerHTML.slice(0, 120))""",
        sorted(set(wanted) - reached)[:5])
    console.wrong(page, f"Tab does not reach {html}")


def hostile(console, *paths):
    """Nothing of what strangers sent runs, asks another host, or is forbidden by the policy."""
    with console.page() as page:
        seen = 0
        to_do = list(VIEWS) + list(paths)
        known = set(to_do)
        while to_do and seen < 60:
            path = to_do.pop(0)
            page.goto(console.url + path, wait_until="load")
            seen += 1
            if page.evaluate("window.pwned !== undefined"):
                console.wrong(page, f"{path}: a string of a stranger runs: {page.evaluate('window.pwned')}")
            console.check_policy(page)
            for link in page.locator("main a[href^='/']").all()[:40]:
                href = link.get_attribute("href")
                if href not in known and not href.startswith("//"):
                    known.add(href)
                    to_do.append(href)
        page.goto(console.url + "/")
        # Some events, which replace the live part.
        page.wait_for_timeout(2_500)
        if page.evaluate("window.pwned !== undefined"):
            console.wrong(page, "a string of a stranger runs in a live part")
        print(f"{seen} pages with strings of strangers")


def newcomer(console):
    """From `make run` to a replayed dead letter, by clicks alone."""
    began = time.monotonic()
    with console.page() as page:
        console.open(page, "/")
        set_mode(page, "422", "refuse")
        with page.expect_navigation():
            page.locator("form:has([name=send]) button[type=submit]").first.click()
        dead = page.locator("nav a[href='/dead']")
        letters = page.locator("main a[href^='/dead/']")
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            dead.click()
            page.wait_for_url("**/dead")
            if letters.count():
                break
            assert time.monotonic() < end, "no dead letter: " + page.locator("main").inner_text()
            page.wait_for_timeout(300)
        set_mode(page, "ok")
        dead.click()
        page.locator("form[action='/dead/replay'] button[type=submit]").click()
        page.wait_for_url("**/jobs/*")
        counting = job_of(page)
        wait_for_phase(page, "counted")
        label = page.locator("label[for='confirm-expected']").inner_text()
        page.locator("input[name=expected]").fill(re.search(r"[\d,]+", label).group(0))
        page.locator("form:has(input[name=expected]) button[type=submit]").click()
        wait_until_left(page, counting)
        wait_for_phase(page, "done")
        print(f"a newcomer replayed dead letters after {time.monotonic() - began:.0f} s")


def set_mode(page, *codes):
    page.locator("nav a[href='/demo']").click()
    page.wait_for_url("**/demo*")
    radios = page.locator(", ".join(f"input[name=mode][value='{code}']" for code in codes))
    radios.first.check()
    with page.expect_navigation():
        page.locator("form:has(input[name=mode]) button[type=submit]").first.click()


def pictures(console, directory, held):
    """The pictures of docs/console.md."""
    total = 0
    with console.page() as page:
        paths = console.paths(page, held)
    webhook, shop = (next(path for path in paths if path.startswith(start)) for start in ["/webhooks/", "/shops/"])
    wanted = [("overview", "/", "light"), ("overview-dark", "/", "dark"), ("lanes", "/lanes", "light"),
              ("webhook", webhook, "light"), ("dead", "/dead", "light"), ("shop", shop, "light"),
              ("audit", "/audit", "light")]
    for name, path, scheme in wanted:
        with console.page(viewport=PICTURE, color_scheme=scheme) as page:
            console.open(page, path)
            # Plots are drawn after the first answer with numbers.
            page.wait_for_timeout(1_500)
            total += save(page, directory, name)
    with console.page(viewport={"width": 390, "height": 700}, is_mobile=True) as page:
        console.open(page, "/dead")
        total += save(page, directory, "phone")
    if total > PICTURES_BYTES_MAX:
        console.problems.append(f"the pictures have {total} bytes")
    print(f"{len(wanted) + 1} pictures, {total} bytes")


def save(page, directory, name):
    path = os.path.join(directory, f"console-{name}.png")
    page.screenshot(path=path, animations="disabled")
    return os.path.getsize(path)


STEPS = [views, replay, replay_without_scripts, chosen, archive, no_archive, pause, resume, drop, live, streams, keyboard,
         hostile, newcomer, pictures]


def place_of(error):
    """Functions and lines of this script that led to an error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.basename(frame.filename) == os.path.basename(__file__)]
    return ", ".join(f"{frame.name}:{frame.lineno}" for frame in own)


def main():
    began = time.monotonic()
    url, step, *arguments = sys.argv[1:]
    run = {one.__name__: one for one in STEPS}[step]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            # As root there is no sandbox. No name leads anywhere.
            args=["--no-sandbox", "--disable-dev-shm-usage",
                  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"])
        console = Console(browser, url)
        try:
            run(console, *arguments)
        except Exception as error:  # All that was seen before is told, too.
            after = f"after {time.monotonic() - began:.0f} s, {place_of(error)}"
            console.problems.append(f"{type(error).__name__} ({after}): {error}")
        browser.close()
    for problem in dict.fromkeys(console.problems):
        print(problem)
    return 1 if console.problems else 0


if __name__ == "__main__":
    sys.exit(main())
