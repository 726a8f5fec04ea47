"""The site of the pages: complete, and the same from a file, under a sub-path and without a network."""

from __future__ import annotations

import fcntl
import functools
import http.server
import re
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest

from house import HOUSE, ROOT
from serried.cli import VERBS, docs
from views.web.browser import chromium

pytestmark = pytest.mark.runs

LOADED = re.compile(r'<(?:img|link|script|source|iframe)\b[^>]*?\s(?:src|href)="([^"]*)"|url\(["\']?([^)"\']*)')
LEADS_TO = re.compile(r'<a\b[^>]*?\shref="(?!\w+:)([^"#]*)#?([^"]*)"')
WIDEST = ("index", "search", "configuration", "command-submit", "python-names", "guarantees", "rules")


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    """One for all workers of pytest-xdist, below a folder `sub`."""
    folder = tmp_path_factory.getbasetemp()
    target = (folder.parent if folder.name.startswith("popen-") else folder) / "served" / "sub"
    target.parent.mkdir(exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            command = [sys.executable, ROOT / "tools" / "build_site.py", target]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    return target


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


def test_every_page_and_every_command_is_in_it(site):
    pages = {*docs.pages(HOUSE), *(f"command-{verb}" for verb in VERBS), "commands", "python-names", "search"}
    assert {path.stem for path in site.glob("*.html")} == pages


def test_its_pages_load_nothing_from_elsewhere(site):
    paths = [path for path in site.rglob("*") if path.suffix in (".html", ".css", ".svg")]
    loaded = [(path.name, *found) for path in paths for found in LOADED.findall(path.read_text(encoding="utf-8"))]
    assert len(loaded) > len(paths)
    assert [link for link in loaded if "//" in "".join(link)] == []


def test_its_links_lead_somewhere(site):
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.glob("*.html")}
    names = {name: set(re.findall(r'\sid="([^"]*)"', text)) for name, text in texts.items()}
    broken = [
        (name, page, anchor)
        for name, text in texts.items()
        for page, anchor in LEADS_TO.findall(text)
        if (page or name) not in texts or (anchor and unquote(anchor) not in names[page or name])
    ]
    assert broken == []


@pytest.mark.parametrize("place", ["a file", "a sub-path"])
def test_a_section_is_found_by_a_search_from(site, browser, place):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site.parent)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = site.as_uri() if place == "a file" else f"http://127.0.0.1:{server.server_port}/sub"
        tab, errors = browser.new_page(), []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(f"{address}/index.html")
        tab.fill(".sidebar-search", "time limit experiments")
        tab.press(".sidebar-search", "Enter")
        tab.click("#results a[href='configuration.html#experiments-name-limit']")
        tab.wait_for_url(f"{address}/configuration.html#experiments-name-limit")
        server.shutdown()
    assert (tab.locator("h2:target, :target > h2").count(), errors) == (1, [])
    tab.close()


@pytest.mark.parametrize("width", [400, 1600])
def test_no_page_scrolls_sideways_at(site, browser, width):
    tab = browser.new_page(viewport={"width": width, "height": 800})
    scrolled = {}
    for name in WIDEST:
        tab.goto(f"{site.as_uri()}/{name}.html?q=run")
        scrolled[name] = tab.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert scrolled == dict.fromkeys(WIDEST, 0)
    tab.close()
