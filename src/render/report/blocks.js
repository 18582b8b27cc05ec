// The segments of the allocator: blocks in use, free blocks between them, and each block's
// allocation site.

const BLOCK_ROW = 16;
const blockMap = { boxes: [], map: null };

function drawBlocks() {
  const { track } = page;
  const panel = byId("blocks");
  const time = track.moments.time[page.shownMoment()];
  const map = atOrBefore(track.maps, time);
  if (!map) {
    panel.replaceChildren(element("p", { className: "detail" }, "No snapshot of the allocator's segments was recorded of this memory."));
    return;
  }
  blockMap.map = map;
  const pieces = freePieces(map);
  const reserved = map.segments.reduce((sum, segment) => sum + segment[0], 0);
  const free = pieces.bytes;
  const told = track.moments.reserved[momentAt(track, map.time)];
  const when = Math.abs(map.time - time) < 1000 ? "at this moment" : map.time < time ? `${secondsText(time - map.time)} before this moment` : "the first there is";
  const text = [
    `${countText(map.segments.length)} segments, ${bytesText(reserved)}, at ${secondsText(map.time)} (${when}).`,
    `${bytesText(free)} is free, in ${countText(pieces.count)} pieces, of which the largest is ${bytesText(pieces.largest)}.`,
    `${bytesText(pieces.whole)} is in segments with nothing in use, which empty_cache() can return.`,
    map.unplaced ? `${bytesText(map.unplaced)} is in segments newer than the last snapshot (${secondsText(map.segments_at)}), which are not drawn.` : "",
    told !== null && told !== reserved ? `PyTorch had ${bytesText(told)} reserved then: segments that came or went since that snapshot are not known.` : "",
    map.segments_at < map.time - 1000 && pieces.bytes ? "Blocks that wait for another stream are drawn as free." : "",
    pieces.waiting ? `${bytesText(pieces.waiting)} waits for another stream.` : "",
    map.consistent ? "" : "The job changed it while it was read: it is not one instant's truth.",
    map.merged ? "There are very many blocks: neighbours in the same state are drawn as one." : "",
  ];
  const canvas = element("canvas", { id: "block-canvas", role: "img", "aria-label": "Map of the allocator's segments" });
  const key = (colour, name) => element("span", {}, element("i", { style: { background: colour } }), name);
  const legend = element("div", { className: "bar", id: "block-legend" });
  legend.append(key("hsl(30 65% 60%)", page.recording.sharpness === "exact" ? "in use, a colour for each line" : "in use, a colour for each line (the likeliest)"), key(cssValue("--pseudo"), "in use, line not known"), key(cssValue("--panel"), "free"), key("#c9a227", "freed, waits for a stream"));
  for (const mark of legend.querySelectorAll("i")) {
    mark.style.cssText += "display:inline-block;width:12px;height:12px;margin-right:5px;border:1px solid var(--line)";
  }
  panel.replaceChildren(element("p", { className: "detail" }, text.filter(Boolean).join(" ")), legend, canvas,
    element("p", { className: "detail", id: "block-detail" }, "each bordered stretch is a segment; hover or tap a block for the stack that allocated it"));
  if (panel.classList.contains("shown")) paintBlocks(canvas, map);
  canvas.addEventListener("pointermove", (event) => {
    const found = blockAt(event, canvas);
    showTip(event, found && event.pointerType === "mouse" ? blockText(found) : null);
  });
  canvas.addEventListener("pointerleave", (event) => showTip(event, null));
  canvas.addEventListener("click", (event) => {
    const found = blockAt(event, canvas);
    if (found) byId("block-detail").textContent = blockText(found).replaceAll("\n", " · ");
  });
}

// Segments in sequence, the largest first, broken into rows.
function paintBlocks(canvas, map) {
  const segments = [...map.segments].sort((a, b) => b[0] - a[0]);
  const reserved = segments.reduce((sum, segment) => sum + segment[0], 0);
  const rows = Math.min(40, Math.max(6, segments.length));
  const perRow = reserved / rows;
  const { context, width } = canvasContext(canvas, (rows + 1) * (BLOCK_ROW + 3));
  const scale = width / perRow;
  blockMap.boxes = [];
  let at = 0;
  for (const segment of segments) {
    const [size, , , states, sizes, stacks] = segment;
    pieces(at, size, perRow, (row, from, length) => {
      context.fillStyle = cssValue("--panel");
      context.fillRect(from * scale, row * (BLOCK_ROW + 3), length * scale, BLOCK_ROW);
    });
    let offset = at;
    for (let i = 0; i < states.length; i++) {
      const block = { state: states[i], size: sizes[i], stack: stacks[i], segment };
      pieces(offset, sizes[i], perRow, (row, from, length) => {
        const box = { x: from * scale, row, width: length * scale, block };
        blockMap.boxes.push(box);
        if (states[i] === 2) return;
        context.fillStyle = blockColour(block);
        const gap = box.width > 3 ? 0.6 : 0;
        context.fillRect(box.x, row * (BLOCK_ROW + 3), Math.max(0.4, box.width - gap), BLOCK_ROW);
      });
      offset += sizes[i];
    }
    context.strokeStyle = cssValue("--soft");
    context.lineWidth = 1;
    pieces(at, size, perRow, (row, from, length) => {
      context.strokeRect(from * scale + 0.5, row * (BLOCK_ROW + 3) + 0.5, Math.max(0, length * scale - 1), BLOCK_ROW - 1);
    });
    at += size;
  }
}

function pieces(at, size, perRow, paint) {
  while (size > 0) {
    const row = Math.floor(at / perRow + 1e-9);
    const from = Math.max(0, at - row * perRow);
    const length = Math.min(size, perRow - from);
    if (length <= 0) return;
    paint(row, from, length);
    at += length;
    size -= length;
  }
}

function blockColour(block) {
  if (block.state === 1) return "#c9a227";
  if (block.stack < 0) return cssValue("--pseudo");
  const frame = chargedFrame(stackFrames(page.track, block.stack));
  const [name, file, line] = page.figures.frames[frame];
  if (file < 0) return cssValue("--pseudo");
  return `hsl(${hue(`${name}${file}:${line}`) % 360} 55% 58%)`;
}

function blockAt(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top) / (BLOCK_ROW + 3));
  const x = event.clientX - box.left;
  return blockMap.boxes.find((b) => b.row === row && x >= b.x && x < b.x + Math.max(1, b.width))?.block ?? null;
}

function blockText(block) {
  const [size, marks, stream] = block.segment;
  const states = ["in use", "freed, waits for another stream", "free"];
  const pool = [marks & 1 ? "small pool" : "large pool", marks & 2 ? "expandable" : "", marks & 4 ? "private pool" : "", stream ? `stream ${stream}` : ""];
  const lines = [`${bytesText(block.size)}, ${states[block.state]}`, `in a segment of ${bytesText(size)} (${pool.filter(Boolean).join(", ")})`];
  if (block.stack >= 0) lines.push(...stackFrames(page.track, block.stack).slice(-8).reverse().map(frameText));
  else if (block.state === 0) lines.push("who allocated it is not known at the moment of this map");
  return lines.join("\n");
}
