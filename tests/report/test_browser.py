"""The page in a real browser: filter and sort, keyboard, phone, dark, print, and no request to anywhere."""

import os
import shutil
import time
from pathlib import Path

import pytest

from tests import browser
from tests.stages import fake_runs, test_report

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.program() is None, reason="no Chromium (chromium, google-chrome) on PATH"),
]
CARDS = "[...document.querySelectorAll('.cards li')]"
SHOWN = f"{CARDS}.filter(c => !c.hidden).map(c => c.querySelector('h3').textContent)"
ACTIVE = "document.activeElement.outerHTML.slice(0, 60)"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Two pages of a study, of 12 and of 1,000 runs."""
    root = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        argv = test_report.make(fake_runs.study(seeds=(0, 1)))
        assert test_report.report.main(argv) == 0
        begin = time.perf_counter()
        text = fake_runs.large_page(fake_runs.study(seeds=(0, 1)), 1000)
        print(f"1,000 runs: {time.perf_counter() - begin:.1f} s, {len(text) / 1e6:.1f} MB")
        Path("results/digits/large.html").write_text(text)
    return root / "results/digits"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    profile = tmp_path_factory.mktemp("profile")
    with browser.Page(profile) as made:
        yield made
    shutil.rmtree(profile, ignore_errors=True)


@pytest.fixture(params=["report.html", "large.html"])
def page(request, site, tab):
    tab.events.clear()
    tab.size(1280)
    tab.look()
    tab.open(site / request.param)
    return tab


def test_filter_shows_the_runs_that_have_every_word(page):
    total = page.run(f"{CARDS}.length")
    page.run("document.querySelector('[name=filter]').focus()")
    for letter in "vit copy":
        page.key(letter, text=letter)
    page.wait_for(f"{SHOWN}.length < {total}")
    shown = page.run(SHOWN)
    assert shown and all("vit_copy" in name for name in shown)
    assert page.run("document.querySelector('output').textContent") == f"{len(shown)} of {total} runs"
    page.run("document.querySelector('[name=filter]').value = ''")
    page.run("document.querySelector('[name=filter]').dispatchEvent(new Event('input'))")
    page.wait_for(f"{SHOWN}.length == {total}")


@pytest.mark.parametrize("key", ["top1", "seconds", "place"])
def test_sort_orders_the_runs_both_ways(page, key):
    values = f"{CARDS}.map(c => Number(c.dataset.{key} || -1))"
    page.run(f"document.querySelector('[name=sort]').value = '{key}'")
    page.run("document.querySelector('[name=sort]').dispatchEvent(new Event('change'))")
    found = page.run(values)
    assert found == sorted(found)
    page.run("document.querySelector('[name=down]').click()")
    found = page.run(values)
    assert found == sorted(found, reverse=True)


def test_nothing_is_asked_of_the_network_and_nothing_complained_of(page):
    asked = [r for r in page.requests() if not r.startswith("data:")]
    assert len(asked) == 1
    assert asked[0].startswith("file://")
    assert page.complaints() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_only_and_what_is_wide_scrolls_in_its_box(page, scheme):
    page.look(scheme)
    page.size(360)
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.run("document.documentElement.scrollWidth") == 360
    wide = page.run(
        "[...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth).length"
    )
    assert wide > 0
    assert page.run(
        "document.querySelector('.lead').scrollWidth <= document.querySelector('.lead').clientWidth"
    )


def test_the_keyboard_reaches_the_runs_first_and_sees_where_it_is(page):
    page.key("Tab")
    assert "Skip to the list of runs" in page.run(ACTIVE)
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.key("Enter", text="\r")
    page.wait_for("location.hash == '#runs' && scrollY > 0")
    page.key("Tab")
    assert 'name="filter"' in page.run(ACTIVE)
    assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.key("Tab")
    assert 'name="sort"' in page.run(ACTIVE)
    page.key("Tab")
    assert 'name="down"' in page.run(ACTIVE)
    page.key(" ", text=" ")
    assert page.run("document.querySelector('[name=down]').checked")


def test_dark_is_dark_and_print_is_light_without_controls(page):
    colour = "getComputedStyle(document.body).{}.match(/\\d+/g).slice(0, 3).map(Number)"
    page.look("dark")
    assert sum(page.run(colour.format("backgroundColor"))) < 150
    assert sum(page.run(colour.format("color"))) > 500
    page.look("dark", "print")
    assert sum(page.run(colour.format("backgroundColor"))) > 700
    assert sum(page.run(colour.format("color"))) < 150
    assert page.run("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_links_of_the_cards_lead_to_files(site, page):
    links = page.run(
        "[...document.querySelectorAll('.cards .links a')].slice(0, 4).map(a => a.getAttribute('href'))"
    )
    assert all(os.path.isfile(site / link) for link in links)
