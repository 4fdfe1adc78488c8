"""Small line charts as SVG, written by hand."""

from html import escape

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 40, 50
COLORS = ["#1b6ca8", "#c8553d", "#3c8d53", "#7b4fa3"]
TICKS = 5


def lines(title, x_label, y_label, series, even_x=False):
    """`series` is {name: [(x, y)]}; y starts at 0. `even_x` spaces the x values evenly, which suits
    a few values far apart."""
    points = [point for one in series.values() for point in one]
    xs = sorted({x for x, _ in points})
    top = max((y for _, y in points), default=0) or 1
    place = placer(xs, even_x)
    high = lambda y: HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           text(WIDTH / 2, 20, title, "middle", 15)]
    for step in range(TICKS + 1):
        value = top * step / TICKS
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{high(value):.1f}" '
                   f'y2="{high(value):.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 6, high(value) + 4, number(value), "end"))
    for x in xs if even_x else spread(xs):
        out.append(text(place(x), HEIGHT - BOTTOM + 18, number(x), "middle"))
    out.append(text(WIDTH / 2, HEIGHT - 10, x_label, "middle"))
    out.append(f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" '
               f'text-anchor="middle">{escape(y_label)}</text>')
    for index, (name, one) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{place(x):.1f},{high(y):.1f}" for x, y in sorted(one))
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(text(LEFT + 10 + 170 * index, TOP - 6, name, "start", 12, color))
    return "\n".join([*out, "</svg>", ""])


def placer(xs, even_x):
    room = WIDTH - LEFT - RIGHT
    if even_x:
        return lambda x: LEFT + room * (xs.index(x) + 0.5) / len(xs)
    low, span = (xs[0], xs[-1] - xs[0] or 1) if xs else (0, 1)
    return lambda x: LEFT + room * (x - low) / span


def spread(xs):
    return [xs[0] + (xs[-1] - xs[0]) * step / TICKS for step in range(TICKS + 1)] if xs else []


def number(value):
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def text(x, y, words, anchor, size=12, color="#222"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{color}">{escape(words)}</text>')
