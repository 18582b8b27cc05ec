"""A terminal's output as rows of styled characters; an SVG of them, light and dark."""
import html
import re

CHARACTER, ROW, MARGIN = 7.8, 18, 14
ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
PLAIN = ()
# Bars are drawn as boxes: fonts differ in these characters, and leave gaps between them.
BOXES = {"█": 1.0, "▚": 0.9, "▓": 0.85, "▒": 0.75, "░": 0.65}
LIGHT = {"31": "#b3261e", "32": "#2e7d32", "33": "#8a5a00", "34": "#1f5fbf", "35": "#8e24aa", "36": "#00707d"}
DARK = {"31": "#ff8a80", "32": "#81c784", "33": "#ffca66", "34": "#90b8ff", "35": "#d79be8", "36": "#66d3df"}


class Screen:
    """What a terminal of `width` columns shows after the output `text`, with all rows above it."""

    def __init__(self, text, width):
        self.width, self.rows, self.row, self.column, self.style = width, [[]], 0, 0, PLAIN
        at = 0
        while at < len(text):
            escape = ESCAPE.match(text, at)
            if escape:
                self.obey(escape[1], escape[2])
                at = escape.end()
            else:
                self.put(text[at])
                at += 1

    def obey(self, words, letter):
        number = int(words) if words.isdigit() else None
        if letter == "m":
            # A new colour replaces the old one.
            kept = self.style if words == "1" else tuple(code for code in self.style if code == "1")
            self.style = PLAIN if words in ("", "0") else (*kept, words)
        elif letter == "A":
            self.row = max(0, self.row - (number or 1))
        elif letter == "K":
            row = self.rows[self.row]
            del row[0 if number == 2 else self.column:]
        elif letter == "J":
            del self.rows[self.row][self.column:]
            del self.rows[self.row + 1:]

    def put(self, character):
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row, self.column = self.row + 1, 0
            if self.row == len(self.rows):
                self.rows.append([])
        elif character >= " ":
            if self.column == self.width:
                self.put("\r"), self.put("\n")
            row = self.rows[self.row]
            row.extend([(" ", PLAIN)] * (self.column + 1 - len(row)))
            row[self.column] = (character, self.style)
            self.column += 1

    def lines(self):
        """The text, without the empty lines around it."""
        return "\n".join("".join(c for c, _ in row).rstrip() for row in self.rows).strip("\n").split("\n")

    def runs(self, row):
        """The parts of a row that look alike: where each begins, its text, its style."""
        begin = 0
        for at in range(1, len(row) + 1):
            if at == len(row) or self.look(row[at]) != self.look(row[begin]):
                yield begin, "".join(c for c, _ in row[begin:at]), row[begin][1]
                begin = at

    def look(self, cell):
        return cell[1], cell[0] if cell[0] in BOXES else ""


def style_sheet():
    colors = lambda table: " ".join(f".c{code} {{ fill: {color} }}" for code, color in table.items())
    return (f"text {{ font: 13px ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace; fill: #1f2328; white-space: pre }} "
            f".ground {{ fill: #f6f8fa; stroke: #d0d7de }} .c1 {{ font-weight: bold }} {colors(LIGHT)} "
            f"@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3 }} .ground {{ fill: #14171b; stroke: #3d444d }} {colors(DARK)} }}")


def draw_run(begin, text, style, base):
    x, width = MARGIN + begin * CHARACTER, len(text) * CHARACTER
    classes = " ".join(f"c{code}" for code in style)
    named = f' class="{classes}"' if classes else ""
    if text[0] in BOXES:
        fill = named or ' class="c34"'
        return f'<rect{fill} x="{x:.1f}" y="{base - 12}" width="{width:.1f}" height="14" opacity="{BOXES[text[0]]}"/>'
    shown = text.strip()
    if not shown:
        return ""
    x += (len(text) - len(text.lstrip())) * CHARACTER
    # The length keeps columns in line whatever the font.
    return f'<text{named} x="{x:.1f}" y="{base}" textLength="{len(shown) * CHARACTER:.1f}">{html.escape(shown, quote=False)}</text>'


def draw(screens):
    """An SVG of commands and what they printed: pairs of a command and its `Screen`."""
    rows = []
    for command, screen in screens:
        rows += [[]] if rows else []
        rows.append([(0, f"$ {command}", ("1",))])
        first = next((at for at, row in enumerate(screen.rows) if row), 0)
        shown = [list(screen.runs(row)) for row in screen.rows[first:]]
        while shown and not shown[-1]:
            shown.pop()
        rows += shown
    columns = max((begin + len(text) for row in rows for begin, text, _ in row), default=1)
    width, height = columns * CHARACTER + 2 * MARGIN, len(rows) * ROW + 2 * MARGIN
    drawn = [draw_run(*run, MARGIN + 13 + at * ROW) for at, row in enumerate(rows) for run in row]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" height="{height}">\n'
            f"<style>{style_sheet()}</style>\n"
            f'<rect class="ground" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1}" rx="8"/>\n' + "\n".join(filter(None, drawn)) + "\n</svg>\n")
