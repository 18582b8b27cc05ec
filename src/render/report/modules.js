// Memory by module at the peak, as a tree whose containers open.

function moduleTree(rows) {
  const root = { name: "", live: 0, all: 0, children: new Map() };
  for (const [path, live, all] of rows) {
    let node = root;
    node.live += live;
    node.all += all;
    for (const step of path) {
      if (!node.children.has(step)) node.children.set(step, { name: step, live: 0, all: 0, children: new Map() });
      node = node.children.get(step);
      node.live += live;
      node.all += all;
    }
  }
  return root;
}

const openModules = new Set();

function moduleRows(node, path, depth, total, hasAllocated) {
  const rows = [];
  const children = [...node.children.values()].sort((a, b) => b.live - a.live || b.all - a.all);
  for (const child of children) {
    const key = `${path}/${child.name}`;
    const opens = child.children.size > 0;
    const isOpen = openModules.has(key);
    const toggle = () => {
      if (isOpen) openModules.delete(key);
      else openModules.add(key);
      drawModules();
    };
    const sign = opens ? (isOpen ? "▾ " : "▸ ") : "  ";
    const name = element("td", { className: "place mono", style: { "padding-left": `${8 + 18 * depth}px` } }, sign + child.name);
    const cells = [
      element("td", { className: "n share", style: { "--share": `${((100 * child.live) / Math.max(1, total)).toFixed(1)}%` } }, `${bytesText(child.live)} · ${shareText(child.live, total) || "0 %"}`),
      hasAllocated ? element("td", { className: "n" }, bytesText(child.all)) : null,
      name,
    ];
    const attributes = opens ? { className: "click", tabIndex: 0, "aria-expanded": String(isOpen), on: pressable(toggle) } : {};
    rows.push(element("tr", attributes, ...cells));
    if (opens && isOpen) rows.push(...moduleRows(child, key, depth + 1, total, hasAllocated));
  }
  return rows;
}

function drawModules() {
  const { modules } = page.track;
  const panel = byId("modules");
  if (!modules) {
    panel.replaceChildren(element("p", { className: "detail" }, "The recording tells no modules of a model: record with --exact (CPython 3.11 or newer), or with --owners for parameters, gradients and optimizer state."));
    return;
  }
  const heads = [element("th", { className: "n" }, "At the peak"), modules.has_allocated ? element("th", { className: "n" }, "Allocated in all") : null, element("th", {}, "Module")];
  panel.replaceChildren(
    element("p", { className: "detail" }, `${bytesText(modules.total)} by module. ${modules.note} Click a row with ▸ to open it.`),
    element("table", {}, element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...moduleRows(moduleTree(modules.rows), "", 0, modules.total, modules.has_allocated))));
}
