"""Small charts as SVG: lines, and grouped bars. Each has a title and units, and can be read in grey,
because lines carry marks of different shape."""

from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 820, 420
LEFT, RIGHT, TOP, BOTTOM = 84, 28, 78, 58
COLORS = ["#1b6ca8", "#c8553d", "#3c8d53", "#7b4fa3", "#b8860b", "#555555"]
FONTS = "system-ui, Helvetica, Arial, DejaVu Sans, sans-serif"
INK, FAINT, GRID = "#1f2933", "#616e7c", "#e4e7eb"
# Approximate number of grid lines; their distance is 1, 2 or 5 times a power of ten.
TICKS = 5
# A line with more points has no marks, because they would cover it.
MARKED_MAX = 25
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
    out += [text(place(x), HEIGHT - BOTTOM + 20, number(x), "middle", 12, FAINT) for x in marks]
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, "middle", 13, INK))
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
        out.append(text(middle, HEIGHT - BOTTOM + 22, group, "middle", 13, INK))
        for index, name in enumerate(names):
            if name in one:
                out += bar(middle + wide * (index - len(names) / 2), wide, one[name], high, index)
    return page([*out, *legend(names, swatch)])


def bar(left, wide, parts, high, index):
    out, below = [], 0.0
    for level, (part, value) in enumerate(parts):
        top, foot = high(below + value), high(below)
        out.append(f'<rect x="{left + 3:.1f}" y="{top:.1f}" width="{wide - 6:.1f}" '
                   f'height="{max(0, foot - top):.1f}" fill="{color(index)}" '
                   f'fill-opacity="{1 if level == 0 else 0.45}"/>')
        if part and foot - top > 16:
            fill = "white" if level == 0 else INK
            out.append(text(left + wide / 2, (top + foot) / 2 + 4, part, "middle", 11, fill))
        below += value
    return [*out, text(left + wide / 2, high(below) - 5, number(below), "middle", 12, INK)]


def frame(title, note, y_label, ticks, high):
    out = [text(LEFT, 26, title, "start", 17, INK, "600")]
    if note:
        out.append(text(WIDTH - RIGHT, 26, note, "end", 11, FAINT))
    for value in ticks:
        y = high(value)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'stroke="{FAINT if value == ticks[0] else GRID}"/>')
        out.append(text(LEFT - 8, y + 4, number(value), "end", 12, FAINT))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text transform="translate(20 {middle:.1f}) rotate(-90)" text-anchor="middle" '
               f'font-size="13" fill="{INK}">{escape(y_label)}</text>')
    return out


def curve(points, index):
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    out = [f'<polyline points="{path}" fill="none" stroke="{color(index)}" '
           'stroke-width="2" stroke-linejoin="round"/>']
    if len(points) <= MARKED_MAX:
        out += [mark(x, y, index) for x, y in points]
    return out


def mark(x, y, index):
    """Returns a mark: a circle, a square or a diamond, in turn."""
    if index % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color(index)}"/>'
    turned = f' transform="rotate(45 {x:.1f} {y:.1f})"' if index % 3 == 2 else ""
    return (f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" '
            f'fill="{color(index)}"{turned}/>')


def swatch(x, y, index):
    return f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10" fill="{color(index)}"/>'


def legend(names, sign):
    if len(names) == 1 and not names[0]:
        return []
    out, x, y = [], LEFT + 6, 50
    for index, name in enumerate(names):
        long = 16 + len(name) * LETTER
        if x + long > WIDTH - RIGHT and x > LEFT + 6:
            x, y = LEFT + 6, y + 17
        out += [sign(x, y - 4, index), text(x + 10, y, name, "start", 12, INK)]
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
        inner = chart.partition(">")[2].rpartition("</svg>")[0]
        parts.append(f'<g transform="translate(0 {HEIGHT * number})">{inner}</g>')
    return "\n".join([*parts, "</svg>", ""])


def opening(height):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="{FONTS}">')


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


def text(x, y, words, anchor, size=12, fill=INK, weight="400"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'font-weight="{weight}" fill="{fill}">{escape(words)}</text>')
