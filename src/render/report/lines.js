// The table of lines: bytes that each allocated itself, and bytes of all stacks through it.

const LINES_SHOWN = 300;

function drawLines() {
  const { state, track, sums } = page;
  const difference = Boolean(sums.before);
  const value = {
    own: (row) => (difference ? row.own - row.before : row.own), through: (row) => row.through, blocks: (row) => row.blocks,
    name: (row) => row.name, place: (row) => placeText(row),
  };
  const words = state.lineSearch.toLowerCase();
  const text = (row) => `${row.name} ${placeText(row)} ${sourceLine(row.file, row.line) ?? ""}`.toLowerCase();
  let rows = lineRows(track, sums).filter((row) => (state.allLines || row.own > 0 || row.before > 0) && (words === "" || text(row).includes(words)));
  const by = value[state.sort] ?? value.own;
  const compare = (a, b) => {
    const [x, y] = [by(a), by(b)];
    if (typeof x === "string") return x.localeCompare(y);
    return difference && state.sort === "own" ? Math.abs(y) - Math.abs(x) : y - x;
  };
  rows.sort(compare);
  if (state.sortUp) rows.reverse();
  const found = rows.length;
  rows = rows.slice(0, LINES_SHOWN);
  const search = element("input", {
    type: "search", placeholder: "search lines", value: state.lineSearch, id: "line-search",
    on: { input: (event) => { state.lineSearch = event.target.value; drawLines(); byId("line-search").focus(); } },
  });
  search.setAttribute("aria-label", "Search lines");
  const bar = element("div", { className: "bar" }, search,
    button("All lines", "Also callers and lines of libraries, which allocate through others", () => page.change({ allLines: !state.allLines }), state.allLines),
    element("span", { className: "note" }, difference ? "change of each line; click a row for its callers"
      : "a byte belongs to the innermost line of the program on its stack; click a row for its callers"));
  const head = (name, title, className = "") => element("th", {
    className: `sortable ${className}`, tabIndex: 0,
    on: pressable(() => page.change({ sort: name, sortUp: state.sort === name ? !state.sortUp : false })),
  }, `${title}${state.sort === name ? (state.sortUp ? " ▴" : " ▾") : ""}`);
  const table = element("table", {},
    element("thead", {}, element("tr", {}, head("own", difference ? "Change" : "Bytes", "n"),
      head("through", "Through it", "n wide"), head("blocks", "Blocks", "n wide"), head("name", "Function"), head("place", "Line"), element("th", { className: "wide" }, "Source"))),
    element("tbody", {}, ...rows.map((row) => lineRow(row, value.own(row), difference))));
  const parts = [bar, table];
  if (found > LINES_SHOWN) parts.push(element("p", { className: "detail" }, `${countText(found - LINES_SHOWN)} more lines: search for them`));
  byId("lines").replaceChildren(...parts);
}

function lineRow(row, own, difference) {
  const { sums, recording } = page;
  const canOpen = row.file >= 0;
  const share = difference ? Math.min(100, (100 * Math.abs(own)) / Math.max(1, sums.total)) : (100 * own) / Math.max(1, sums.total);
  const amount = difference ? signedText(own) : `${bytesText(own)} · ${shareText(own, sums.total) || "0 %"}`;
  const library = canOpen && page.figures.files[row.file].library;
  return element("tr", {
    className: `${canOpen ? "click" : ""} ${library ? "library" : ""}`,
    tabIndex: canOpen ? 0 : -1,
    on: canOpen ? pressable(() => page.showCallers(row.file, row.line)) : {},
  },
  element("td", { className: "n share", style: { "--share": `${share.toFixed(1)}%` } }, amount),
  element("td", { className: "n wide" }, bytesText(row.through)),
  element("td", { className: "n wide" }, row.blocks > 0 && recording.sharpness !== "estimated" ? countText(row.blocks) : ""),
  element("td", { className: "place" }, row.name),
  element("td", { className: "place" }, placeText(row)),
  element("td", { className: "text wide" }, sourceLine(row.file, row.line)?.trim() ?? ""));
}
