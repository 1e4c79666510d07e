"""Drives the pages of memfit report in Chromium: select, hover, search, switch, compare; keyboard alone; narrow and wide, light and
dark; names from strangers; no request; without scripts. With a path it measures that page instead: drawn after, frames a second."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from playwright.sync_api import sync_playwright

MEMFIT = os.environ.get("MEMFIT", "build/memfit")
failures = []


def check(what, holds, more=""):
    if not holds:
        failures.append(what)
        print("FAIL", what, more)


# ---- traces ----

HOSTILE = ["<script>window.hacked=1</script>", "</script><img src=x onerror=window.hacked=1>", "\x1b[31mred", "\u202egnp", '"><b>bold</b>', "x" * 10000, "&amp; && '"]
KINDS = ["parameters", "gradients", "optimizer", "activations", "inputs", "workspace", "other"]


def write_trace(path, seed, steps=6):
    """Times are tens of milliseconds apart; returns [(seconds, live bytes after the event)]."""
    random.seed(seed)
    rows, alive, live, curve, t, n = ["time_us,op,id,bytes,kind,owner"], [], 0, [], 0, 0

    def put(op, i, size, kind, owner):
        nonlocal live, t
        rows.append('%d,%s,%d,%d,%s,"%s"' % (t, op, i, size, kind, owner.replace('"', '""')))
        live += size if op == "alloc" else -size
        curve.append((t / 1e6, live))
        t += 10000

    for k in range(4):
        put("alloc", n, 5000000 + k, "parameters", "dense_%d/kernel" % k)
        n += 1
    for name in HOSTILE:
        put("alloc", n, 1000000 + n, "other", name[:200] if len(name) < 300 else name[:3000])
        n += 1
    for s in range(steps):
        mine = []
        for k in range(12):
            size = 1000000 * (1 + k % 5) + random.randint(0, 9999)
            mine.append((n, size, random.choice(KINDS[1:]), "forward (model.py:%d) < block_%d (model.py:9) < train_step (train.py:88)" % (10 + k, k // 4)))
            put("alloc", *mine[-1])
            n += 1
        for b in reversed(mine[1 if s % 2 else 0:]):
            put("free", *b)
        put("alloc", n, 2000000, "activations", "losses.append (train.py:90)")
        n += 1
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(rows) + "\n")
    return curve


def run(*args):
    return subprocess.run([MEMFIT, *args], check=True, capture_output=True, text=True).stdout


# ---- what the page looks like ----

LOOK = r"""() => {
  const bad = [], main = document.querySelector("main");
  if (document.documentElement.scrollWidth > innerWidth) bad.push("the page is " + document.documentElement.scrollWidth + " wide of " + innerWidth);
  const clipped = e => { for (let p = e.parentElement; p && p !== main; p = p.parentElement) if (getComputedStyle(p).overflowX !== "visible") return true; return false; };
  for (const s of main.querySelectorAll("section")) {
    const box = s.getBoundingClientRect();
    for (const e of s.querySelectorAll("*")) {
      const r = e.getBoundingClientRect();
      if (r.width && !clipped(e) && !e.closest(".hide") && (r.right > box.right + 1 || r.left < box.left - 1)) { bad.push("outside its box: " + e.tagName + " " + e.className + " " + e.textContent.slice(0, 40)); break; }
    }
  }
  const walk = document.createTreeWalker(main, NodeFilter.SHOW_TEXT), range = document.createRange();
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (["SCRIPT", "STYLE", "OPTION"].includes(e.tagName) || !e.getClientRects().length || e.closest(".hide,svg,.flame")) continue;
    for (const m of n.data.matchAll(/[A-Za-z0-9.,:%()]+/g)) {
      range.setStart(n, m.index); range.setEnd(n, m.index + m[0].length);
      const tops = new Set([...range.getClientRects()].filter(r => r.width > 0).map(r => Math.round(r.top)));
      if (tops.size > 1 && m[0].length < 40) { bad.push("broken word: " + m[0]); break; }
    }
  }
  const lum = c => { const v = c.map(x => { x /= 255; return x <= .03928 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * v[0] + .7152 * v[1] + .0722 * v[2]; };
  const parse = t => { const m = t.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const seen = new Set();
  for (const e of main.querySelectorAll("*")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length || e.closest(".hide,svg") || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    let back = [0, 0, 0, 0];
    for (let p = e; p && back[3] < 1; p = p.parentElement) { const c = parse(getComputedStyle(p).backgroundColor); if (c[3]) back = c; }
    const a = lum(parse(getComputedStyle(e).color).slice(0, 3)), b = lum(back.slice(0, 3)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) { const k = e.tagName + e.className; if (!seen.has(k)) { seen.add(k); bad.push("contrast " + ratio.toFixed(2) + ": " + k + " " + e.textContent.slice(0, 30)); } }
  }
  return bad;
}"""


class Driver:
    def __init__(self, browser, folder):
        self.browser, self.folder, self.requests, self.errors = browser, folder, [], []

    def open(self, path, width=1280, height=900, dark=False, scripts=True, drawn=True):
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", java_script_enabled=scripts)
        page = context.new_page()
        page.on("request", lambda r: self.requests.append(r.url))
        page.on("pageerror", lambda e: self.errors.append(str(e)))
        page.on("dialog", lambda d: (self.errors.append("dialog"), d.dismiss()))
        page.goto("file://" + path)
        if scripts and drawn:
            page.wait_for_selector("html[data-drawn]", state="attached")  # the page forbids eval, which waiting for a function needs
        return page


def table(page):
    """Names, and the bytes in their column as text."""
    return page.evaluate('[...document.querySelectorAll("#rows tr")].map(r => [r.cells[0].title, r.cells[2].textContent])')


def exact_sum(page):
    return int(re.sub(r"\D", "", page.locator("#sum-bytes").get_attribute("title")))


def size_text(b):
    u = ["B", "KiB", "MiB", "GiB", "TiB"]
    i = 0
    while b >= 1024 and i < 4:
        b /= 1024
        i += 1
    return "%d B" % b if i == 0 else "%.2f %s" % (b, u[i])


def drag(page, plot, a, b):
    page.locator(plot).scroll_into_view_if_needed()
    box = page.locator(plot).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * a, y)
    page.mouse.down()
    for i in range(1, 6):
        page.mouse.move(box["x"] + box["width"] * (a + (b - a) * i / 5), y)
    page.mouse.up()
    page.wait_for_timeout(250)


def seconds(text):
    value, unit = text.split()
    return float(value) * (0.001 if unit == "ms" else 1)


def range_of(page):
    """(from, to, size text) of the heading."""
    m = re.match(r"(?:Selected|The whole trace): (\S+ m?s) to (\S+ m?s), highest (\S+ \S+) at", page.locator("#range").inner_text())
    return (seconds(m[1]), seconds(m[2]), m[3]) if m else None


# ---- the tests ----


def test_one(d, path, trace, curve):
    peak = json.loads(run("replay", "--json", trace))["peak_live_bytes"]
    page = d.open(path)
    check("the peak is replay's", exact_sum(page) == peak, "%d %d" % (exact_sum(page), peak))
    check("hostile names did nothing", page.evaluate("window.hacked === undefined"))
    names = [n for n, b in table(page)]
    check("a script's name is text", any("<script>" in n for n in names) and any("onerror" in n for n in names))
    check("control characters are visible", any("\\u202e" in n for n in names) and not any("\u202e" in n or "\x1b" in n for n in names))

    drag(page, "#plot0", 0.3, 0.6)
    got = range_of(page)
    check("a range is selected", got and page.locator("#range").inner_text().startswith("Selected"))
    if got:
        want = max(b for t, b in curve if got[0] - 0.004 <= t < got[1] - 0.004)
        check("its highest is right", got[2] == size_text(want), "%s %s" % (got[2], size_text(want)))
        check("the table adds up to it", size_text(exact_sum(page)) == got[2])
    page.locator("#zoom-in").click()
    drag(page, "#plot0", 0.4, 0.5)
    inner = range_of(page)
    check("a range inside the zoomed one", inner and got and got[0] <= inner[0] and inner[1] <= got[1] and inner[1] - inner[0] < got[1] - got[0])
    page.locator("#zoom-out").click()
    page.wait_for_timeout(200)
    check("the whole again", page.locator("#range").inner_text().startswith("The whole trace") and exact_sum(page) == peak)

    box = page.locator("#plot0").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.55, box["y"] + box["height"] - 30)
    check("hovering names an owner", page.locator("#tip0").is_visible() and "live" in page.locator("#tip0").inner_text() and "largest:" in page.locator("#tip0").inner_text())

    before = page.locator("#legend0").inner_text()
    page.get_by_label("by owner").check()
    check("bands by owner", page.locator("#legend0").inner_text() != before and "train_step" in page.locator("#legend0").inner_text())
    page.get_by_label("by kind").check()
    check("bands by kind", page.locator("#legend0").inner_text() == before)
    for axis in ("events", "steps", "time"):
        page.get_by_label(axis, exact=True).check()
        drag(page, "#plot0", 0.2, 0.9)
        check("a range over " + axis, range_of(page) is not None)
    page.locator("#zoom-out").click()
    page.wait_for_timeout(200)

    page.locator("#search").fill("parameters")
    rows = table(page)
    check("search", len(rows) == 4 and all("kernel" in n for n, b in rows), str(rows))
    check("the sum of what was found", exact_sum(page) == sum(5000000 + k for k in range(4)))
    page.locator("#search").fill("")
    head = page.locator("#owners th[data-key=name]")
    head.locator("button").click()
    names = [n for n, b in table(page)]
    check("sorted by name", names == sorted(names) and head.get_attribute("aria-sort") == "ascending")
    head.locator("button").click()
    check("sorted the other way", [n for n, b in table(page)] == sorted(names, reverse=True))

    bars = page.locator("#flame button")
    check("a flame graph", bars.count() > 10)
    before = page.locator("#flame").inner_text()
    page.get_by_label("bytes × time").check()
    check("its weight", page.locator("#flame").inner_text() != before and "·s" in page.locator("#flame").inner_text())
    bars.nth(2).click()
    check("a bar searches", page.locator("#search").input_value() == bars.nth(2).get_attribute("data-name"))


def test_keyboard(d, path):
    page = d.open(path)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "plot0":
            break
    check("Tab reaches the timeline", page.evaluate("document.activeElement.id") == "plot0")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    check("what has the focus shows it", outline != "0px", outline)
    page.keyboard.press("Home")
    first = page.locator("#plot0").get_attribute("aria-valuetext")
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    check("arrows move", page.locator("#plot0").get_attribute("aria-valuetext") != first and page.locator("#live0").inner_text() != "")
    for _ in range(40):
        page.keyboard.press("Shift+ArrowRight")
    page.wait_for_timeout(300)
    got = range_of(page)
    check("shift selects", got and page.locator("#range").inner_text().startswith("Selected") and got[1] > got[0])
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    check("Escape gives it up", page.locator("#range").inner_text().startswith("The whole trace"))
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#flame') !== null"):
            break
    check("Tab reaches the flame graph", page.evaluate("document.activeElement.closest('#flame') !== null"))
    one = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("ArrowDown")
    check("arrows move in it", page.evaluate("document.activeElement.textContent") != one)
    page.keyboard.press("Enter")
    check("Enter searches", page.locator("#search").input_value() != "")
    page.keyboard.press("Tab")
    check("then comes the search", page.evaluate("document.activeElement.id") == "search")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    check("then the heads of the table", page.evaluate("document.activeElement.closest('th').dataset.key") == "name")


def test_two(d, path, a, b):
    page = d.open(path)
    got = json.loads(run("report", "--json", a, b))
    cells = page.evaluate('[...document.querySelectorAll("td[data-bytes]")].map(c => +c.dataset.bytes)')
    check("the changes add up to the difference", cells and sum(cells[:-1]) == cells[-1] == got["peak_difference_bytes"], str(cells))
    check("both timelines", page.locator("#plot1").is_visible())
    drag(page, "#plot1", 0.3, 0.7)
    check("a range of the second", "(second trace)" in page.locator("#range").inner_text())
    page.get_by_label("first", exact=True).check()
    check("back to the first", "(first trace)" in page.locator("#range").inner_text())
    page.get_by_label("steps", exact=True).check()
    check("aligned by steps", page.get_by_label("steps", exact=True).is_checked())


def test_looks(d, path, name):
    for width in (360, 1280):
        for dark in (False, True):
            for scripts in (True, False):
                page = d.open(path, width=width, dark=dark, scripts=scripts)
                what = "%s at %d%s%s" % (name, width, " dark" if dark else "", "" if scripts else " without scripts")
                if scripts:
                    bad = page.evaluate(LOOK)
                    check("looks: " + what, not bad, str(bad[:5]))
                else:
                    text = page.locator("main").inner_text()
                    check("readable: " + what, "Peak " in text and "At the peak" in text and page.locator("svg").first.is_visible() and not page.locator("#plot0").is_visible())
                page.context.close()


def test_plan(d, folder):
    """The page of memfit plan: no scripts in it; one card as asked, two cards with a curve."""
    models = os.path.join(os.environ.get("MEMFIT_SOURCE", "."), "tests/fixtures/plan")
    for name, arguments in (("plan", ["mlp.json", "--for", "t4"]), ("plan of two cards", ["conv_pool_1024.json", "-b", "256", "--for", "rtx-3080,t4", "--curve"])):
        path = os.path.join(folder, "plan.html")
        run("plan", os.path.join(models, arguments[0]), *arguments[1:], "-q", "--html", path)
        for width in (360, 1280):
            for dark in (False, True):
                page = d.open(path, width=width, dark=dark, drawn=False)
                bad = page.evaluate(LOOK)
                check("looks: %s at %d%s" % (name, width, " dark" if dark else ""), not bad, str(bad[:5]))
                small = page.evaluate('Math.min(...[...document.querySelectorAll("svg text")].map(t => t.getBoundingClientRect().height))')
                check("%s at %d: text in charts can be read" % (name, width), small >= 9, "%.1f px" % small)
                page.context.close()
        text = open(path, encoding="utf-8").read()
        check(name + ": layers on hover", "of layer dense" in text and "operations</text>" in text)
    check("two cards: as asked behind the plan, and a curve", "as asked: " in text and "<polyline" in text and "Side by side" in text)


def hostile_model(path):
    """A model whose own name and layers' names are markup."""
    source = os.path.join(os.environ.get("MEMFIT_SOURCE", "."), "tests/fixtures/train/unet.json")
    model = json.load(open(source, encoding="utf-8"))
    text = json.dumps(model)
    for i, layer in enumerate(model["config"]["layers"]):
        name = layer.get("name") or layer["config"]["name"]
        text = text.replace(json.dumps(name), json.dumps("%s %d" % (HOSTILE[i % len(HOSTILE)][:200], i)))
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def stopped_run(path, model):
    """The page of a run that a signal ended after some steps."""
    p = subprocess.Popen([MEMFIT, "train", model, "--data", "synthetic:64", "--epochs", "1000000", "-q", "--html", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while p.poll() is None and not (os.path.exists(path) and "has not ended" in open(path, encoding="utf-8").read()):
        time.sleep(0.05)
    time.sleep(1)
    p.send_signal(signal.SIGINT)
    check("SIGINT ends the run", p.wait() == -signal.SIGINT)


def test_train(d, folder):
    """The page of memfit train, completed: done, stopped, refused."""
    models = os.path.join(os.environ.get("MEMFIT_SOURCE", "."), "tests/fixtures/train")
    model, path = os.path.join(folder, "hostile.json"), os.path.join(folder, "train.html")
    hostile_model(model)
    pages = {"done": path, "stopped": os.path.join(folder, "stopped.html"), "refused": os.path.join(folder, "refused.html")}
    r = json.loads(run("train", model, "--data", "synthetic:64", "-b", "8", "--epochs", "2", "--memory", "80%", "-q", "--json", "--html", path))
    stopped_run(pages["stopped"], os.path.join(models, "mlp.keras"))
    subprocess.run([MEMFIT, "train", model, "--data", "synthetic:64", "--memory", "2MiB", "-q", "--html", pages["refused"]], capture_output=True)
    titles = {"done": "Measured", "stopped": "Measured until it was stopped", "refused": "Not trained"}
    for name, at in pages.items():
        for width in (360, 1280):
            for dark in (False, True):
                page = d.open(at, width=width, dark=dark, drawn=False, scripts=True)
                bad = page.evaluate(LOOK)
                what = "train, %s, at %d%s" % (name, width, " dark" if dark else "")
                check("looks: " + what, not bad, str(bad[:5]))
                small = page.evaluate('Math.min(...[...document.querySelectorAll("svg text")].map(t => t.getBoundingClientRect().height))')
                check(what + ": text in charts can be read", small >= 9, "%.1f px" % small)
                check(what + ": names did nothing", page.evaluate("window.hacked === undefined"))
                page.context.close()
        page = d.open(at, scripts=False, drawn=False)
        check("train, %s: its heading" % name, page.get_by_role("heading", name=titles[name], exact=True).count() == 1)
        chart = page.locator('svg[aria-label^="measured memory"]')
        check("train, %s: a chart of what was measured, where there was something" % name, chart.count() == (name != "refused"))
        if name != "refused":
            words = page.locator("main").inner_text()
            check("train, %s: measured beside planned" % name, "The process held at most" in words and "planned" in words)
        page.context.close()
    page = d.open(path, scripts=False, drawn=False)
    check("train: the figures of the result", size_text(r["measured_peak_bytes"]) in page.locator("main").inner_text() and size_text(r["planned_peak_bytes"]) in page.locator("main").inner_text())
    check("train: names are text", "<script>window.hacked=1</script>" in page.locator("main").inner_text())
    page.context.close()


def measure(browser, path):
    """For docs/bench: a page that was made before."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto("file://" + path)
    page.wait_for_selector("html[data-drawn]", state="attached")  # the page forbids eval, which waiting for a function needs
    print("drawn after %s ms" % page.evaluate("document.documentElement.dataset.drawn"))
    print("peak in the page: %d bytes" % exact_sum(page))
    # One movement in every frame, made in the page: what Playwright needs to send one is not measured.
    times = page.evaluate("""async () => {
      const plot = document.getElementById("plot0"), box = plot.getBoundingClientRect(), times = [];
      plot.setPointerCapture = () => {};
      const send = (type, x) => plot.dispatchEvent(new PointerEvent(type, { clientX: box.left + x, clientY: box.top + 100, pointerId: 1, bubbles: true }));
      send("pointerdown", 100);
      for (let i = 0; i < 300; i++) { times.push(await new Promise(requestAnimationFrame)); send("pointermove", 100 + (i * 7) % 900); }
      send("pointerup", 500);
      return times;
    }""")
    gaps = sorted(b - a for a, b in zip(times, times[1:]))
    print("dragging: %d frames in %.0f ms, %.0f a second; the slowest twentieth took %.0f ms" % (len(gaps), times[-1] - times[0], 1000 * len(gaps) / (times[-1] - times[0]), gaps[len(gaps) * 19 // 20]))


def main():
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=os.environ["MEMFIT_BROWSER"], args=["--no-sandbox"])
        if len(sys.argv) > 1:
            measure(browser, os.path.abspath(sys.argv[1]))
            return 0
        a, b = os.path.join(folder, "first.csv"), os.path.join(folder, "second.csv")
        curve = write_trace(a, 1)
        write_trace(b, 2, steps=9)
        one, two = os.path.join(folder, "one.html"), os.path.join(folder, "two.html")
        run("report", "-q", "--html", one, a)
        run("report", "-q", "--html", two, a, b)
        d = Driver(browser, folder)
        test_one(d, one, a, curve)
        test_keyboard(d, one)
        test_two(d, two, a, b)
        test_looks(d, one, "one trace")
        test_looks(d, two, "two traces")
        test_plan(d, folder)
        test_train(d, folder)
        check("no request leaves a page", all(u.startswith("file://" + folder) for u in d.requests), str(set(d.requests))[:200])
        check("no error in a script", not d.errors, str(d.errors[:3]))
        browser.close()
    print("%d failures" % len(failures))
    return 1 if failures else 0


sys.exit(main())
