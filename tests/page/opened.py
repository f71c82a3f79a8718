"""Pages in the browser that may neither log an error nor load anything else."""

from tests.support import ROOT

SCREENSHOTS = ROOT / "build" / "screenshots"


class Opened:
    """A page, its messages and its requests."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def close(self):
        asked = [address for address in self.asked[1:] if address != "data:,"]
        self.context.close()
        assert self.said == []
        assert asked == []
