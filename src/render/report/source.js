// The source: files by bytes, and each line's bytes in the gutter.

function drawSource() {
  const { track, sums, state, figures } = page;
  const rows = lineRows(track, sums).filter((row) => row.file >= 0 && row.line > 0);
  const files = new Map();
  for (const row of rows) {
    const file = files.get(row.file) ?? { file: row.file, own: 0, lines: new Map() };
    file.own += row.own;
    file.lines.set(row.line, row);
    files.set(row.file, file);
  }
  // A program file counts its own bytes; a library file counts the bytes through its largest line.
  const weight = (file) => (file.own > 0 ? file.own : Math.max(...[...file.lines.values()].map((row) => row.through)) * 1e-6);
  const sorted = [...files.values()].sort((a, b) => weight(b) - weight(a));
  const panel = byId("source");
  if (!sorted.length) {
    panel.replaceChildren(element("p", { className: "detail" }, "Nothing that is shown has a line of a program."));
    return;
  }
  const chosen = files.get(state.file) ?? sorted[0];
  const list = element("div", { className: "files" }, ...sorted.map((file) => {
    const made = button("", "", () => page.change({ file: file.file }), file === chosen);
    made.replaceChildren(element("span", {}, figures.files[file.file].name), element("span", {}, file.own > 0 ? bytesText(file.own) : ""));
    return made;
  }));
  panel.replaceChildren(
    element("p", { className: "detail" }, figures.redacted ? "The source text was left out of this report; the lines are there."
      : "In the gutter: bytes that a line allocated itself, or with ↳ through what it calls. Click a line for its callers."),
    element("div", { className: "sources" }, list, element("div", { className: "source", tabIndex: 0 }, sourceTable(chosen))));
  // Scrolls to the line with the most bytes.
  const lines = [...chosen.lines.values()];
  const top = lines.reduce((a, b) => (b.own > a.own || (a.own === 0 && b.own === 0 && b.through > a.through) ? b : a));
  const shown = panel.querySelector(`[data-line="${top.line}"]`);
  if (shown) shown.closest(".source").scrollTop = shown.offsetTop - 120;
}

function sourceTable(file) {
  const { sums, figures } = page;
  const text = new Map();
  for (const [first, lines] of figures.files[file.file].source) lines.forEach((line, i) => text.set(first + i, line));
  for (const line of file.lines.keys()) if (!text.has(line)) text.set(line, "");
  const numbers = [...text.keys()].sort((a, b) => a - b);
  const body = element("tbody");
  let last = null;
  for (const number of numbers) {
    if (last !== null && number > last + 1) {
      body.append(element("tr", { className: "gap" }, element("td", { className: "gutter" }, "⋯"), element("td", { className: "number" }), element("td")));
    }
    last = number;
    const row = file.lines.get(number);
    const amount = row ? Math.max(row.own, row.through) : 0;
    const heat = `${Math.min(75, (90 * amount) / Math.max(1, sums.total)).toFixed(0)}%`;
    const shown = !row ? "" : row.own > 0 ? bytesText(row.own) : `↳ ${bytesText(row.through)}`;
    body.append(element("tr", { className: row ? "held" : "", "data-line": String(number), tabIndex: row ? 0 : -1,
      on: row ? pressable(() => page.showCallers(file.file, number)) : {} },
      element("td", { className: `gutter ${row ? "held" : ""}`, style: { "--heat": heat } }, shown),
      element("td", { className: "number" }, String(number)),
      element("td", {}, text.get(number))));
  }
  return element("table", {}, body);
}
