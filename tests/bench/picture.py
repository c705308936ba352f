"""The picture of Gets: bars for each contestant, as SVG that reads on light and on dark ground."""

from collections.abc import Iterator

from tests.bench.figures import CONTESTANTS, Figures, Spread
from tests.bench.gets import CONNECTION_COUNTS, hot_figure

_COLORS = {"tablegate": "#2f81f7", "peer": "#d9822b", "floor": "#8b949e"}
_NAMES = {"tablegate": "tablegate", "peer": "Kafka Streams + grpc-java", "floor": "grpc-go, constant answer"}
_PANEL_WIDTH, _BARS_HEIGHT, _TOP = 360, 170, 74
_BAR_WIDTH, _GROUP_WIDTH = 34, 116
# A grey that reads on both grounds: a page's may differ from what the system prefers.
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#6e7681}.small{font-size:10px}.title{font-weight:600}"
    ".line{stroke:#6e7681}.spread{stroke:#3d444d}"
)


def draw(figures: Figures) -> str:
    """Return the SVG of requests/s and server CPU of Gets of one hot key, without TLS."""
    width, height = 2 * _PANEL_WIDTH + 20, _TOP + _BARS_HEIGHT + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        "<title>Get: requests per second, and server CPU a request</title>",
        f"<style>{_STYLE}</style>",
        *_legend(figures),
        *_panel(figures, "Get, requests/s (more is better)", "", 0),
        *_panel(figures, "Get, server CPU, µs a request (less is better)", ", server CPU", _PANEL_WIDTH + 20),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(figures: Figures) -> Iterator[str]:
    present = [who for who in CONTESTANTS if who in figures[hot_figure(1)].of]
    left = 0
    for who in present:
        yield f'<rect x="{left}" y="6" width="12" height="12" rx="2" fill="{_COLORS[who]}"/>'
        yield f'<text x="{left + 18}" y="16">{_NAMES[who]}</text>'
        left += 48 + 7 * len(_NAMES[who])


def _panel(figures: Figures, title: str, suffix: str, left: int) -> Iterator[str]:
    groups = [(count, figures[hot_figure(count) + suffix].of) for count in CONNECTION_COUNTS]
    largest = max(spread.max for _, spreads in groups for spread in spreads.values())
    base = _TOP + _BARS_HEIGHT
    yield f'<text class="title" x="{left}" y="46">{title}</text>'
    for place, (count, spreads) in enumerate(groups):
        start = left + place * _GROUP_WIDTH + 4
        for number, who in enumerate(who for who in CONTESTANTS if who in spreads):
            yield from _bar(spreads[who], _COLORS[who], start + number * (_BAR_WIDTH + 2), base, _BARS_HEIGHT / largest)
        middle = start + len(spreads) * (_BAR_WIDTH + 2) / 2
        name = f"{count} connection{'s' if count > 1 else ''}"
        yield f'<text x="{middle:.0f}" y="{base + 18}" text-anchor="middle">{name}</text>'
    yield f'<path class="line" d="M{left} {base}.5h{_PANEL_WIDTH}"/>'


def _bar(spread: Spread, color: str, left: float, base: int, scale: float) -> Iterator[str]:
    """Draw the median, a line from the smallest to the largest, and the number above both."""
    height, middle = spread.median * scale, left + _BAR_WIDTH / 2
    low, high = base - spread.min * scale, base - spread.max * scale
    value = f"{spread.median:,.0f}"
    yield f'<rect x="{left}" y="{base - height:.1f}" width="{_BAR_WIDTH}" height="{height:.1f}" rx="2" fill="{color}"/>'
    yield f'<path class="spread" d="M{middle} {low:.1f}V{high:.1f}"/>'
    yield f'<text class="small" x="{middle}" y="{high - 4:.1f}" text-anchor="middle">{value}</text>'
