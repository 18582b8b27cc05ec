"""Values over time as a picture, in the look of a dashboard's panel."""
import html

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 70, 46, 60
COLORS = [("#1f5fbf", "#90b8ff"), ("#8a5a00", "#ffca66"), ("#2e7d32", "#81c784")]
GIB = 1 << 30


def style_sheet():
    light = " ".join(f".s{i} {{ stroke: {color} }} .f{i} {{ fill: {color} }}" for i, (color, _) in enumerate(COLORS))
    dark = " ".join(f".s{i} {{ stroke: {color} }} .f{i} {{ fill: {color} }}" for i, (_, color) in enumerate(COLORS))
    return (f"text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }} .title {{ font-size: 15px; font-weight: 600 }} "
            f".ground {{ fill: #f6f8fa; stroke: #d0d7de }} .grid {{ stroke: #d0d7de }} .line {{ fill: none; stroke-width: 2 }} {light} "
            f"@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .ground {{ fill: #14171b; stroke: #3d444d }} .grid {{ stroke: #2d333b }} {dark} }}")


def step_of(top):
    """Some four lines of a grid, in GiB."""
    return next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50) if top / step <= 5)


def chart(title, series):
    """An SVG of `series`: names, each with its points (seconds, bytes)."""
    last = max(at for points in series.values() for at, _ in points)
    top = max(value for points in series.values() for _, value in points) / GIB
    step = step_of(top)
    top = (int(top / step) + 1) * step
    x = lambda at: LEFT + at / last * (WIDTH - LEFT - 20)
    y = lambda value: HEIGHT - BOTTOM - value / GIB / top * (HEIGHT - BOTTOM - TOP)
    parts = [f'<rect class="ground" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
             f'<text class="title" x="16" y="26">{html.escape(title, quote=False)}</text>']
    for number in range(int(top / step) + 1):
        at = y(number * step * GIB)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - 20}"/>'
                     f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{number * step:g} GiB</text>')
    for seconds in range(0, int(last) + 1, 5):
        parts.append(f'<text x="{x(seconds):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{seconds} s</text>')
    legend = LEFT
    for number, (name, points) in enumerate(series.items()):
        path = " ".join(f"{'L' if at else 'M'}{x(point[0]):.1f} {y(point[1]):.1f}" for at, point in enumerate(points))
        parts.append(f'<path class="line s{number}" d="{path}"/><rect class="f{number}" x="{legend}" y="{HEIGHT - 24}" width="12" height="4"/>'
                     f'<text x="{legend + 18}" y="{HEIGHT - 18}">{html.escape(name, quote=False)}</text>')
        legend += 40 + 7 * len(name)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">\n<style>{style_sheet()}</style>\n'
            + "\n".join(parts) + "\n</svg>\n")
