"""A real browser: Chromium without a window."""

from __future__ import annotations

import contextlib
import os
import shutil

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => parts(colour).slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [.2126, .7152, .0722][at], 0);
  const behind = (at) => {
    const found = at ? getComputedStyle(at).backgroundColor : "rgb(255, 255, 255)";
    return parts(found)[3] === 0 ? behind(at.parentElement) : found;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const place = texts.currentNode.parentElement;
    if (!texts.currentNode.textContent.trim() || !place.getClientRects().length || place.disabled) continue;
    const pair = [light(getComputedStyle(place).color), light(behind(place))].sort((one, other) => other - one);
    if ((pair[0] + .05) / (pair[1] + .05) < 4.5) found.push(place.outerHTML);
  }
  return found;
}"""
"""The elements whose text is too pale for its background."""


@contextlib.contextmanager
def chromium():
    if PROGRAM is None:
        reason = "no Chromium: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()
