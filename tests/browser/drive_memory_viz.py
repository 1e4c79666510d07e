"""PyTorch's own viewer (torch/utils/viz/MemoryViz.js) in Chromium on what `memfit report --memory-viz` writes: does it draw, and the same?

    drive_memory_viz.py MemoryViz.js d3.v7.min.js TRACE...

Both scripts come from outside: the viewer from PyTorch's repository, d3 from npm or any package that carries it. The viewer loads d3
from a network; here every request is answered by the file that was given. For each trace, every view of the viewer: no error, the
timeline has the buffers and reaches the peak, the history lists the events."""
import base64
import json
import os
import re
import subprocess
import sys
import tempfile

from playwright.sync_api import sync_playwright

MEMFIT = os.environ.get("MEMFIT", "build/memfit")
PAGE = """<!doctype html><html><head></head><body><script src="http://viewer/d3.js"></script><script type="module">
import {add_local_files} from "http://viewer/MemoryViz.js";
add_local_files(%s, "Active Memory Timeline");
window.loaded = true;
</script></body></html>"""
failures = []


def check(what, holds, more=""):
    if not holds:
        failures.append(what)
        print("FAIL", what, more)


def serve(page, viewer, d3, html):
    """Answers requests for the viewer; d3 is one script, and each of its modules hands on the names that are asked of it."""
    names = sorted(set(re.findall(r"\bd3\.([A-Za-z]\w*)", viewer)) | {"axisLeft", "scaleLinear", "zoom", "zoomIdentity", "brushX"})
    # Scales note their domains: the timeline's goes from 0 to the highest sum that the viewer found.
    module = """const scale = window.d3.scaleLinear;
window.highest = window.highest || [];
window.d3 = {...window.d3, scaleLinear() { const s = scale(), domain = s.domain; s.domain = d => { if (!d) return domain(); window.highest.push(d[1]); domain(d); return s; }; return s; }};
"""
    module += "".join("export const %s = window.d3.%s;\n" % (n, n) for n in names if n != "event")
    asked = []

    def answer(route):
        url = route.request.url
        asked.append(url)
        if url == "http://viewer/":
            route.fulfill(body=html, content_type="text/html")
        elif url.endswith("/d3.js"):
            route.fulfill(body=d3, content_type="text/javascript")
        elif url.endswith("/MemoryViz.js"):
            route.fulfill(body=viewer, content_type="text/javascript")
        elif "d3" in url:
            route.fulfill(body=module, content_type="text/javascript", headers={"access-control-allow-origin": "*"})
        else:
            route.abort()

    page.route("**/*", answer)
    return asked


def bytes_of(text):
    """The number in "12.5MiB (13107200 bytes)"; where only the rounded one is there, that."""
    m = re.search(r"\((\d+) bytes\)", text)
    return int(m[1]) if m else None


def drive(browser, viewer, d3, trace, folder):
    pickle = os.path.join(folder, "trace.pickle")
    report = json.loads(subprocess.run([MEMFIT, "report", "--json", "--memory-viz", pickle, trace], check=True, capture_output=True, text=True).stdout)
    data = base64.b64encode(open(pickle, "rb").read()).decode()
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    errors, name = [], os.path.basename(trace)
    page.on("pageerror", lambda e: errors.append(str(e)))
    serve(page, viewer, d3, PAGE % json.dumps([{"name": "memfit", "base64": data}]))
    page.goto("http://viewer/")
    page.wait_for_function("window.loaded === true", timeout=60000)
    views = page.evaluate('[...document.querySelectorAll("select")].map(s => [...s.options].map(o => o.text)).find(o => o.includes("Active Memory Timeline"))')
    drawn = page.locator("svg polygon").count()
    axis = page.evaluate('[...document.querySelectorAll("svg text")].map(t => t.textContent)')
    check(name + ": the timeline is drawn", drawn > 0 and axis, "%d polygons, axis %s" % (drawn, axis[:3]))
    top = page.evaluate("""() => {
      const box = document.querySelector("svg polygon").ownerSVGElement.getBoundingClientRect();
      return [box.width, box.height];
    }""")
    check(name + ": it has a size", min(top) > 50, str(top))
    check(name + ": its highest is the peak", report["peak_live_bytes"] in page.evaluate("window.highest"), str(page.evaluate("window.highest"))[:100])
    box = page.evaluate("""() => { const big = [...document.querySelectorAll("svg g polygon")].map(p => p.getBoundingClientRect()).sort((a, b) => b.width * b.height - a.width * a.height)[0];
      return [big.x + big.width / 2, big.y + big.height / 2]; }""")
    page.mouse.move(*box)
    words = page.locator("pre").all_inner_texts()
    check(name + ": a buffer says its size", any(bytes_of(w) is not None for w in words), str(words)[:200])
    listed = None
    for view in views:
        page.locator("select", has=page.locator("option", has_text="Active Memory Timeline")).first.select_option(view)
        page.wait_for_timeout(300)
        if view == "Allocator State History":
            listed = page.evaluate("""() => [...document.querySelectorAll("pre")].map(p => p.textContent).filter(t => /^(alloc|free|free_requested|free_completed) /.test(t)).length""")
    check(name + ": no error in the viewer", not errors, str(errors[:3]))
    check(name + ": the history lists the events", listed == report["events"], "%s of %d" % (listed, report["events"]))
    print("%-28s %6d events, %5d listed, %5d buffers drawn; views: %s" % (name, report["events"], listed or 0, drawn, ", ".join(views)))
    page.context.close()


def main():
    viewer, d3 = (open(p, encoding="utf-8").read() for p in sys.argv[1:3])
    with sync_playwright() as p, tempfile.TemporaryDirectory() as folder:
        browser = p.chromium.launch(executable_path=os.environ["MEMFIT_BROWSER"], args=["--no-sandbox"])
        for trace in sys.argv[3:]:
            drive(browser, viewer, d3, trace, folder)
        browser.close()
    print("%d failures" % len(failures))
    return 1 if failures else 0


sys.exit(main())
