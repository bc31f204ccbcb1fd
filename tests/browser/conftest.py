"""Headless Chromium for the tests of pages; without it, or without playwright, they are skipped and say so."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by playwright, which downloads nothing. It ends with the tests."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'schedc[test]'")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=chromium, args=arguments, timeout=200_000)
        yield started
        started.close()
