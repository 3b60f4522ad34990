"""Plots, written by hand: bars and lines as SVG."""

import html
import math

COLOURS = ["#2f6db5", "#c7702e", "#4f9a53", "#8a62a8", "#777777"]
STYLE = ("<style>text{font:13px sans-serif;fill:#222}.t{font-weight:bold;font-size:15px}"
         ".n{fill:#555}.g{stroke:#ddd}</style>")


def _document(width, height, parts):
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img">')
    return "\n".join([head, STYLE, f'<rect width="{width}" height="{height}" fill="#fff"/>',
                      *parts, "</svg>", ""])


def _text(x, y, text, kind="", anchor="start"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f"{html.escape(text)}</text>")


def bars(title, unit, rows, series=None):
    """Horizontal bars: `rows` are pairs of a label and its values, one for each
    of `series`. Values that lie far apart get a logarithmic axis."""
    rows = [(label, [value for value in values]) for label, values in rows]
    known = [value for _, values in rows for value in values if value]
    if not known:
        return None
    most, least = max(known), min(known)
    logarithmic = series is not None and most / least > 50
    number = max(len(values) for _, values in rows)
    thick = 20 if number == 1 else 14
    step = number * thick + 10
    left, wide = 270, 420
    parts = [_text(14, 24, title, "t"), _text(14, 43, unit, "n")]
    if series:
        x = left
        for index, name in enumerate(series):
            parts.append(f'<rect x="{x}" y="33" width="11" height="11"'
                         f' fill="{COLOURS[index % len(COLOURS)]}"/>')
            parts.append(_text(x + 16, 43, name, "n"))
            x += 30 + 8 * len(name)
    floor = 10 ** math.floor(math.log10(least)) if logarithmic else 0
    top = 58
    for line, (label, values) in enumerate(rows):
        y = top + line * step
        parts.append(_text(left - 8, y + number * thick / 2 + 4, label, anchor="end"))
        for index, value in enumerate(values):
            if value is None:
                continue
            if logarithmic:
                share = math.log(value / floor) / math.log(most / floor)
            else:
                share = value / most
            colour = COLOURS[(index if number > 1 else 0) % len(COLOURS)]
            parts.append(f'<rect x="{left}" y="{y + index * thick}" height="{thick - 2}"'
                         f' width="{max(share * wide, 1):.1f}" fill="{colour}"/>')
            parts.append(_text(left + max(share * wide, 1) + 5, y + index * thick + thick - 4,
                               short(value), "n"))
    if logarithmic:
        parts.append(_text(14, top + len(rows) * step + 8, "logarithmic", "n"))
    return _document(left + wide + 90, top + len(rows) * step + 18, parts)


def lines(title, unit, series):
    """Lines over time: `series` are pairs of a name and points (x, y), the
    y of each as a share of its own largest value, so that they fit together."""
    left, top, wide, high = 60, 60, 600, 240
    parts = [_text(14, 24, title, "t"), _text(14, 43, unit, "n")]
    most_x = max(x for _, points in series for x, _ in points) or 1
    for quarter in range(5):
        y = top + high * quarter / 4
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y}" y2="{y}" class="g"/>')
        parts.append(_text(left - 8, y + 4, f"{100 - 25 * quarter} %", "n", "end"))
    for minute in range(0, int(most_x) + 1, max(1, int(most_x) // 10)):
        parts.append(_text(left + wide * minute / most_x, top + high + 18, str(minute), "n",
                           "middle"))
    parts.append(_text(left + wide, top + high + 34, "minutes", "n", "end"))
    for index, (name, points) in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        most = max(y for _, y in points) or 1
        path = " ".join(f"{left + wide * x / most_x:.1f},{top + high * (1 - y / most):.1f}"
                        for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"'
                     ' stroke-width="2"/>')
        y = top + high + 54 + 18 * index
        parts.append(f'<rect x="{left}" y="{y - 10}" width="11" height="11" fill="{colour}"/>')
        parts.append(_text(left + 16, y, f"{name}, at most {short(most)}", "n"))
    return _document(left + wide + 30, top + high + 60 + 18 * len(series), parts)


def short(value):
    """Three figures, with thousands apart."""
    if value >= 1000:
        digits = max(0, int(math.log10(value)) - 2)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.3g}"
