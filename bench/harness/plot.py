"""Small charts as SVG: lines, and grouped bars. Each has a title and units, and can be read in grey,
because lines carry marks of different shape."""

from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 820, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 28, 78, 58
COLORS = ["#1b6ca8", "#c8553d", "#3c8d53", "#7b4fa3", "#b8860b", "#555555"]
FONTS = "system-ui, Helvetica, Arial, DejaVu Sans, sans-serif"
# Kinds of text and lines. Pages are kept in the repository, so each says as little as it can.
RULES = """
text{font-size:12px;fill:#1f2933}
.title{font-size:17px;font-weight:600}
.note{font-size:11px;fill:#616e7c;text-anchor:end}
.x{fill:#616e7c;text-anchor:middle}
.y{fill:#616e7c;text-anchor:end}
.axis{font-size:13px;text-anchor:middle}
.bar{text-anchor:middle}
.part{font-size:11px;text-anchor:middle}
.white{fill:#fff}
path{stroke:#e4e7eb}
.zero{stroke:#616e7c}
path.l{fill:none;stroke-width:2;stroke-linejoin:round}
"""
# Approximate number of grid lines; their distance is 1, 2 or 5 times a power of ten.
TICKS = 5
# A line with more points has no marks, because they would cover it.
MARKED_MAX = 25
# Width of the columns in which no more than the lowest and the highest of a line's points are drawn.
COLUMN = 4
# A bar that is longer than so many times the next one is cut.
CUT_FROM = 3
# Average width of a letter in the legend, because SVG cannot measure text.
LETTER = 6.6


def lines(title, x_label, y_label, series, even_x=False, log_y=False, note=""):
    """Draws lines. `series` is {name: [(x, y)]}; y starts at 0, or is logarithmic. `even_x` spaces
    the x values evenly, which suits a few values far apart. A y of None is left out."""
    series = {name: [(x, y) for x, y in sorted(one) if y is not None] for name, one in series.items()}
    points = [point for one in series.values() for point in one]
    xs = sorted({x for x, _ in points})
    place = placer(xs, even_x)
    ticks = (powers if log_y else rounds)([y for _, y in points])
    high = logarithmic(ticks) if log_y else linear(ticks)
    marks = xs if even_x else [x for x in rounds(xs) if not xs or xs[0] <= x <= xs[-1]]
    out = frame(title, note, y_label, ticks, high)
    out += [text(place(x), HEIGHT - BOTTOM + 20, number(x), "x") for x in marks]
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, "axis"))
    for index, one in enumerate(series.values()):
        out += curve([(place(x), high(y)) for x, y in one], index)
    return page([*out, *legend(list(series), mark)])


def bars(title, y_label, groups, note=""):
    """Draws bars. `groups` is {group: {bar: value, or [(part, value)] from the bottom up}}, with the
    same bars in each. Parts are stacked, the upper ones paler."""
    stacks = {group: {name: parts if isinstance(parts, list) else [("", parts)]
                      for name, parts in one.items()} for group, one in groups.items()}
    sums = [sum(value for _, value in parts) for one in stacks.values() for parts in one.values()]
    ticks = rounds(sums)
    high, names = linear(ticks), list(dict.fromkeys(name for one in stacks.values() for name in one))
    out = frame(title, note, y_label, ticks, high)
    room = (WIDTH - LEFT - RIGHT) / max(1, len(stacks))
    wide = min(90, room * 0.8 / max(1, len(names)))
    for place, (group, one) in enumerate(stacks.items()):
        middle = LEFT + room * (place + 0.5)
        out.append(text(middle, HEIGHT - BOTTOM + 22, group, "axis"))
        for index, name in enumerate(names):
            if name in one:
                out += bar(middle + wide * (index - len(names) / 2), wide, one[name], high, index)
    return page([*out, *legend(names, swatch)])


def rows(title, stacks, note=""):
    """Draws bars from left to right, one for each name, the names in a column of their own. `stacks` is
    {name: [(part, value)] from left to right}; the later parts are paler. A bar that is much longer than the
    others is cut."""
    left = LEFT + LETTER * max(map(len, stacks), default=0) * 0.9
    sums = sorted(sum(value for _, value in parts) for parts in stacks.values())
    top_sum = sums[-2] * 1.2 if len(sums) > 1 and sums[-1] > CUT_FROM * sums[-2] else sums[-1]
    scale = (WIDTH - RIGHT - 60 - left) / (top_sum or 1)
    high = min(34, (HEIGHT - TOP - 20) / max(1, len(stacks)))
    out = [text(RIGHT, 26, title, "title"), text(WIDTH - RIGHT, 26, note, "note")]
    for index, (name, parts) in enumerate(stacks.items()):
        top, at, whole = 50 + high * index, left, sum(value for _, value in parts)
        shrink = min(1, top_sum / (whole or 1))
        out.append(text(left - 8, top + high / 2 + 1, name, "y"))
        for level, (part, value) in enumerate(parts):
            long = max(0, value * scale * shrink)
            out.append(f'<rect x="{at:.1f}" y="{top:.0f}" width="{long:.1f}" height="{high - 9:.0f}" '
                       f'fill="{color(0)}" fill-opacity="{1 if level == 0 else 0.45}"/>')
            if part and long > 10 + len(part) * LETTER:
                out.append(text(at + long / 2, top + high / 2, part, "part white" if level == 0 else "part"))
            at += long
        if shrink < 1:
            # A gap in the bar.
            out.append(f'<rect x="{at - 24:.0f}" y="{top - 2:.0f}" width="6" height="{high - 5:.0f}" fill="white"/>')
        out.append(text(at + 6, top + high / 2 + 1, number(whole)))
    return page(out)


def bar(left, wide, parts, high, index):
    out, below = [], 0.0
    for level, (part, value) in enumerate(parts):
        top, foot = high(below + value), high(below)
        out.append(f'<rect x="{left + 3:.0f}" y="{top:.1f}" width="{wide - 6:.0f}" '
                   f'height="{max(0, foot - top):.1f}" fill="{color(index)}" '
                   f'fill-opacity="{1 if level == 0 else 0.45}"/>')
        if part and foot - top > 16:
            kind = "part white" if level == 0 else "part"
            out.append(text(left + wide / 2, (top + foot) / 2 + 4, part, kind))
        below += value
    return [*out, text(left + wide / 2, high(below) - 5, number(below), "bar")]


def frame(title, note, y_label, ticks, high):
    out = [text(LEFT, 26, title, "title")]
    if note:
        out.append(text(WIDTH - RIGHT, 26, note, "note"))
    zero, *others = [f"M{LEFT} {high(value):.0f}H{WIDTH - RIGHT}" for value in ticks]
    out += [f'<path d="{"".join(others)}"/>', f'<path class="zero" d="{zero}"/>']
    out += [text(LEFT - 8, high(value) + 4, number(value), "y") for value in ticks]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text transform="translate(20 {middle:.0f}) rotate(-90)" class="axis">'
               f'{escape(y_label)}</text>')
    return out


def curve(points, index):
    path = steps(thinned([(round(x), round(y)) for x, y in points]))
    # A rule would go before an attribute.
    out = [f'<path class="l" d="{path}" style="stroke:{color(index)}"/>']
    if len(points) <= MARKED_MAX:
        out += [mark(x, y, index) for x, y in points]
    return out


def steps(points):
    """Returns a path in whole units, each point relative to the one before it, which takes the fewest letters."""
    pairs = [(x - before_x, y - before_y) for (before_x, before_y), (x, y) in zip([(0, 0)] + points, points)]
    return "m" + " ".join(f"{x} {y}" for x, y in pairs).replace(" -", "-")


def thinned(points):
    """Leaves out points that nobody would see: those between the lowest and the highest of a column, and those
    on the line between their neighbours."""
    columns = {}
    for at, (x, y) in enumerate(points):
        columns.setdefault(x // COLUMN, []).append((y, at))
    kept = sorted({at for column in columns.values() for _, at in (min(column), max(column))})
    points = [points[at] for at in kept]
    out = points[:1]
    for (x, y), (after_x, after_y) in zip(points[1:], points[2:] + [(None, None)]):
        before_x, before_y = out[-1]
        if after_x is None or (y - before_y) * (after_x - x) != (after_y - y) * (x - before_x):
            out.append((x, y))
    return out


def mark(x, y, index):
    """Returns a mark: a circle, a square or a diamond, in turn."""
    if index % 3 == 0:
        return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="4" fill="{color(index)}"/>'
    turned = f' transform="rotate(45 {x:.0f} {y:.0f})"' if index % 3 == 2 else ""
    return (f'<rect x="{x - 3.5:.0f}" y="{y - 3.5:.0f}" width="7" height="7" '
            f'fill="{color(index)}"{turned}/>')


def swatch(x, y, index):
    return f'<rect x="{x - 5:.0f}" y="{y - 5:.0f}" width="10" height="10" fill="{color(index)}"/>'


def legend(names, sign):
    if len(names) == 1 and not names[0]:
        return []
    out, x, y = [], LEFT + 6, 50
    for index, name in enumerate(names):
        long = 16 + len(name) * LETTER
        if x + long > WIDTH - RIGHT and x > LEFT + 6:
            x, y = LEFT + 6, y + 17
        out += [sign(x, y - 4, index), text(x + 10, y, name)]
        x += long + 20
    return out


def page(parts):
    head = opening(HEIGHT)
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
                      *parts, "</svg>", ""])


def stacked(pages):
    """Puts charts above one another in one file."""
    parts = [opening(HEIGHT * len(pages))]
    for number, chart in enumerate(pages):
        inner = chart.partition("</style>")[2].rpartition("</svg>")[0]
        parts.append(f'<g transform="translate(0 {HEIGHT * number})">{inner}</g>')
    return "\n".join([*parts, "</svg>", ""])


def opening(height):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONTS}">\n'
            f"<style>{RULES}</style>")


def placer(xs, even_x):
    room = WIDTH - LEFT - RIGHT
    if even_x:
        return lambda x: LEFT + room * (xs.index(x) + 0.5) / len(xs)
    low, span = (xs[0], xs[-1] - xs[0] or 1) if xs else (0, 1)
    return lambda x: LEFT + room * (x - low) / span


def linear(ticks):
    return lambda y: HEIGHT - BOTTOM - y / ticks[-1] * (HEIGHT - TOP - BOTTOM)


def logarithmic(ticks):
    low, high = log10(ticks[0]), log10(ticks[-1])
    room = HEIGHT - TOP - BOTTOM
    return lambda y: HEIGHT - BOTTOM - (log10(max(y, ticks[0])) - low) / (high - low) * room


def rounds(values):
    """Returns round numbers from 0 to the first that no value exceeds."""
    top = max(values, default=0) or 1
    power = 10.0 ** floor(log10(top / TICKS))
    step = next(power * times for times in (1, 2, 5, 10) if power * times * TICKS >= top * 0.999)
    return [step * number for number in range(ceil(top / step - 1e-3) + 1)]


def powers(values):
    """Returns the powers of ten around all values above 0."""
    values = [value for value in values if value > 0] or [1]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    return [10.0 ** power for power in range(low, max(high, low + 1) + 1)]


def number(value):
    if value >= 10 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2g}"


def color(index):
    return COLORS[index % len(COLORS)]


def text(x, y, words, kind=""):
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{kind}>{escape(words)}</text>'
