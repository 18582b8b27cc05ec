// The flamegraph as an icicle: a frame's width is its bytes, and its callees hang below it.

const ROW = 20;
const flame = { root: null, callers: null, zoom: null, boxes: [], hovered: null, selected: null };

function buildFlame() {
  const { track, state, sums } = page;
  if (state.sandwich === null) {
    flame.root = frameTree(track, sums, { inverted: state.inverted, callersOf: state.callersOf });
    flame.callers = null;
  } else {
    ({ callers: flame.callers, callees: flame.root } = sandwichTrees(track, sums, state.sandwich));
  }
  flame.zoom = flame.root;
  flame.selected = null;
  flame.hovered = null;
}

function isDifference() {
  return Boolean(page.sums.before);
}

// The width of a node; in a difference the greater side, so that freed bytes show too.
function extent(node) {
  if (!isDifference()) return node.bytes;
  node.extent ??= node.children.size
    ? Math.max([...node.children.values()].reduce((sum, child) => sum + extent(child), 0), node.bytes, node.before)
    : Math.max(node.bytes, node.before);
  return node.extent;
}

function matches(node) {
  return page.state.search !== "" && node.frame >= 0 && frameText(node.frame).toLowerCase().includes(page.state.search.toLowerCase());
}

// The boxes below a node, row by row downwards (`step` 1) or upwards (-1).
function placeChildren(boxes, node, x, perByte, depth, step) {
  for (const child of sortedChildren(node)) {
    const wide = extent(child) * perByte;
    if (!(wide >= 0.5)) break;
    boxes.push({ node: child, x, width: wide, depth });
    placeChildren(boxes, child, x, perByte, depth + step, step);
    x += wide;
  }
}

function sortedChildren(node) {
  return [...node.children.values()].sort((a, b) => extent(b) - extent(a));
}

function layoutFlame(width) {
  if (flame.callers) return layoutSandwich(width);
  const boxes = [];
  const path = [];
  for (let node = flame.zoom; node; node = node.parent) path.unshift(node);
  path.forEach((node, depth) => boxes.push({ node, x: 0, width, depth }));
  if (extent(flame.zoom) > 0) placeChildren(boxes, flame.zoom, 0, width / extent(flame.zoom), path.length, 1);
  return boxes;
}

function frameColour(node) {
  if (node.frame < 0) return cssValue("--panel");
  if (isDifference()) {
    const change = node.bytes - node.before;
    const strength = Math.min(1, Math.abs(change) / Math.max(1, Math.max(node.bytes, node.before)));
    if (strength < 0.005) return cssValue("--pseudo");
    return `hsl(${cssValue(change > 0 ? "--grown" : "--shrunk")} ${30 + 45 * strength}% ${cssValue("--frame-l")})`;
  }
  const [name, file] = page.figures.frames[node.frame];
  if (file < 0) return cssValue("--pseudo");
  if (isLibrary(node.frame)) return cssValue("--library");
  const shade = hue(name + file);
  return `hsl(${18 + (shade % 34)} ${64 + (shade % 17)}% ${cssValue("--frame-l")})`;
}

function drawFlame() {
  const canvas = byId("flamegraph");
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  flame.boxes = layoutFlame(width);
  const rows = Math.max(4, ...flame.boxes.map((box) => box.depth + 1));
  const { context } = canvasContext(canvas, rows * ROW + 2);
  context.font = "12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
  context.textBaseline = "middle";
  const ink = cssValue("--frame-text");
  const text = cssValue("--text");
  const searching = page.state.search !== "";
  for (const box of flame.boxes) {
    const y = box.depth * ROW;
    const found = matches(box.node);
    context.globalAlpha = searching && !found && box.node.frame >= 0 ? 0.35 : 1;
    context.fillStyle = found ? "#b14fd8" : frameColour(box.node);
    context.fillRect(box.x + 0.25, y + 0.5, Math.max(0.5, box.width - 0.75), ROW - 1);
    if (box.node === flame.hovered || box.node === flame.selected) {
      context.strokeStyle = text;
      context.lineWidth = 1.5;
      context.strokeRect(box.x + 1, y + 1, Math.max(1, box.width - 2), ROW - 2);
    }
    if (box.width > 30) {
      context.fillStyle = found ? "#ffffff" : box.node.frame < 0 ? text : ink;
      context.fillText(fitted(context, nodeLabel(box.node), box.width - 8), box.x + 4, y + ROW / 2 + 0.5);
    }
  }
  context.globalAlpha = 1;
  drawFlameDetail();
}

function nodeLabel(node) {
  const amount = isDifference() ? signedText(node.bytes - node.before) : bytesText(node.bytes);
  if (node.frame < 0) {
    const { callersOf } = page.state;
    if (flame.callers) return `${sandwichText()} · ${amount} · its callers above, what it calls below`;
    return `${callersOf ? "callers, innermost first" : page.state.inverted ? "all, innermost first" : "all"} · ${amount}`;
  }
  return `${frameText(node.frame)} · ${amount}`;
}

function signedText(bytes) {
  return bytes > 0 ? `+${bytesText(bytes)}` : bytesText(bytes);
}

// Characters have a fixed width; what does not fit is cut.
function fitted(context, text, width) {
  const letter = context.letterWidth ?? (context.letterWidth = context.measureText("m").width);
  const room = Math.floor(width / letter);
  if (text.length <= room) return text;
  return room > 3 ? `${text.slice(0, room - 1)}…` : "";
}

function nodeText(node) {
  const whole = page.sums.total;
  const lines = [node.frame >= 0 ? frameText(node.frame) : flame.callers ? sandwichText() : "all"];
  if (isDifference()) lines.push(`${signedText(node.bytes - node.before)}: from ${bytesText(node.before)} to ${bytesText(node.bytes)}`);
  else lines.push(`${bytesText(node.bytes)}, ${shareText(node.bytes, whole) || "0 %"} of what is shown`);
  if (node.count > 0 && page.recording.sharpness !== "estimated") lines.push(`${countText(node.count)} blocks`);
  if (node.frame >= 0) {
    const [, file, line] = page.figures.frames[node.frame];
    const source = sourceLine(file, line);
    if (source) lines.push(source.trim());
  }
  return lines.join("\n");
}

function drawFlameDetail() {
  const detail = byId("flame-detail");
  const node = flame.hovered ?? flame.selected;
  byId("flame-sandwich")?.toggleAttribute("disabled", !(flame.selected?.frame >= 0));
  if (page.state.search !== "") {
    const found = searchedBytes(flame.callers ? frameTree(page.track, page.sums) : flame.root);
    detail.textContent = `“${page.state.search}” is in stacks of ${bytesText(found)} (${shareText(found, page.sums.total) || "0 %"})`;
  } else {
    detail.textContent = node ? nodeText(node).replaceAll("\n", " · ") : flame.callers ? "click a frame for its callers and callees, the function itself to go back"
      : "click a frame to zoom in, the top row to zoom out";
  }
}

// Bytes of the stacks with a matching frame, each counted once.
function searchedBytes(node) {
  if (matches(node)) return node.bytes;
  let sum = 0;
  for (const child of node.children.values()) sum += searchedBytes(child);
  return sum;
}

function drawFlameBar() {
  const { state } = page;
  const search = element("input", {
    type: "search", placeholder: "search functions and files", value: state.search, title: "Search (/)", id: "flame-search",
    on: { input: (event) => { state.search = event.target.value; page.remember(); drawFlame(); } },
  });
  search.setAttribute("aria-label", "Search functions and files");
  const parts = [
    search,
    button("Inverted", "From what allocates to its callers (I)", () => page.change({ inverted: !state.inverted, sandwich: null }), state.inverted),
  ];
  if (flame.callers) {
    parts.push(button(`✕ callers and callees of ${sandwichText()}`, "Show all stacks (Escape)", () => page.change({ sandwich: null })));
  } else {
    const both = button("Callers and callees", "Of the selected frame's function: callers above it, what it calls below (S)", () => page.showSandwich(flame.selected.frame));
    both.id = "flame-sandwich";
    parts.push(both, button("Zoom out", "Show everything (Escape)", () => zoomTo(flame.root)));
  }
  if (state.callersOf) {
    const place = `${page.figures.files[state.callersOf.file].name}:${state.callersOf.line}`;
    parts.push(button(`✕ callers of ${place}`, "Show all stacks", () => page.change({ callersOf: null })));
  }
  parts.push(element("span", { className: "note push" }, "warm: the program · blue-grey: libraries · grey: no Python line"));
  byId("flame-bar").replaceChildren(...parts);
}

function zoomTo(node) {
  flame.zoom = node;
  flame.selected = node;
  drawFlame();
}

function boxAt(event) {
  const box = byId("flamegraph").getBoundingClientRect();
  const x = event.clientX - box.left;
  const depth = Math.floor((event.clientY - box.top) / ROW);
  return flame.boxes.find((b) => b.depth === depth && x >= b.x && x < b.x + b.width) ?? null;
}

function startFlame() {
  const canvas = byId("flamegraph");
  canvas.addEventListener("pointermove", (event) => {
    const box = boxAt(event);
    if (flame.hovered !== (box?.node ?? null)) {
      flame.hovered = box?.node ?? null;
      drawFlame();
    }
    showTip(event, box && event.pointerType === "mouse" ? nodeText(box.node) : null);
  });
  canvas.addEventListener("pointerleave", (event) => {
    flame.hovered = null;
    showTip(event, null);
    drawFlame();
  });
  canvas.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (!box) return;
    if (!flame.callers) zoomTo(box.node);
    else page.showSandwich(box.node.frame < 0 ? null : box.node.frame);
  });
  canvas.addEventListener("keydown", (event) => {
    const node = flame.selected ?? flame.zoom;
    const beside = (by) => {
      const siblings = node.parent ? sortedChildren(node.parent) : [node];
      return siblings[siblings.indexOf(node) + by] ?? node;
    };
    const next = { ArrowDown: () => sortedChildren(node)[0], ArrowUp: () => node.parent, ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) }[event.key];
    if (flame.callers && ["ArrowUp", "ArrowDown"].includes(event.key)) {
      flame.selected = sandwichStep(node, event.key, sortedChildren) ?? node;
    } else if (flame.callers && event.key === "Enter") {
      page.showSandwich(node.frame < 0 ? null : node.frame);
      return;
    } else if (next) {
      flame.selected = next() ?? node;
      if (!flame.callers && !flame.boxes.some((box) => box.node === flame.selected)) flame.zoom = flame.selected.parent ?? flame.root;
    } else if (event.key === "Enter") {
      flame.zoom = node;
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
    drawFlame();
  });
}
