"""Run by a Python that has netron and playwright: ``BROWSER FILE...``; says which nodes Netron's page draws of each file.

Netron's package serves a page whose scripts parse the file, so the page is opened in a browser without a window. What the
page asks of other hosts is not let through.
"""

import html
import json
import re
import sys

import netron
from playwright.sync_api import sync_playwright

DRAWN = "#nodes > g.graph-node, body.alert"


def nodes(browser, path):
    host, port = netron.start(path, address=("127.0.0.1", 0), browse=False)
    url = f"http://{host}:{port}"
    context = browser.new_context()
    try:
        # the page would first ask whether it may send statistics
        context.add_cookies([{"name": "consent", "value": "1", "url": url}])
        page = context.new_page()
        page.route("**/*", lambda route: route.continue_() if route.request.url.startswith(url) else route.abort())
        page.goto(url)
        page.wait_for_selector(DRAWN, state="attached", timeout=60000)
        content = page.content()
    finally:
        context.close()
        netron.stop((host, port))
    alert = re.search(r'id="message-text"[^>]*>([^<]+)<', content)
    if alert:
        raise SystemExit(f"Netron says of {path}: {html.unescape(alert[1])}")
    return re.findall(r'class="node-item node-item-type[^"]*"[^>]*><path[^>]*></path><text[^>]*>([^<]*)<', content)


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox"])
    for path in sys.argv[2:]:
        print("nodes", json.dumps([path, nodes(browser, path)]), flush=True)
    browser.close()
