#!/usr/bin/env python3
"""The words of a page of `memfit plan --html`, one element a line, after checks: well-formed, nothing fetched, no scripts."""
import re
import sys
import xml.etree.ElementTree as tree

text = open(sys.argv[1], encoding="utf-8").read()
assert text.startswith("<!DOCTYPE html>\n"), "no doctype"
for word in ("<script", "http:", "https:", "@import", "url("):
    assert word not in text, word
page = tree.fromstring(text.split("\n", 1)[1])
for element in page.iter():
    assert element.tag not in ("script", "img", "link", "iframe", "object"), element.tag
    assert not any(key in ("src", "href") or key.startswith("on") for key in element.keys()), element.attrib
assert page.tag == "html" and page.find(".//svg/path") is not None
for path in page.iter("path"):  # inside the picture, closed, falling onto the line it began on
    x, y = [], []
    for kind, number in re.findall(r"([HV])([-0-9.]+)", path.get("d")):
        (x if kind == "H" else y).append(float(number))
    assert x == sorted(x) and all(78 <= v <= 992 for v in x) and all(26 <= v <= 292 for v in y), path.get("d")
    assert path.get("d").endswith("Z")
for element in page.find("body").iter():
    if element.tag in ("style", "title"):
        continue
    if element.tag in ("h1", "h2", "p", "tr", "text", "span") and (words := " ".join("".join(element.itertext()).split())):
        print(f"{element.tag:5}{words}" if element.tag != "tr" else
              "tr   " + " | ".join(" ".join("".join(cell.itertext()).split()) for cell in element))
