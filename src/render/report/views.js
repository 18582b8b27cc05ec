// Views of a moment or a window, from the lifetimes of blocks. Every view sums over the same
// stacks.

const VIEWS = {
  live: "live at the moment",
  leaked: "leaked: allocated in the window, live at its end",
  churned: "churned: allocated and freed in the window",
  difference: "difference: end against begin",
};

// Bytes and blocks of each stack. Only a difference has `before`.
function stackBytes(track, selection) {
  const { view, moment, window } = selection;
  if (!window || view === "live") return liveBytes(track, window ? window[1] : moment);
  if (view === "difference") {
    const after = liveBytes(track, window[1]);
    after.before = liveBytes(track, window[0]).bytes;
    after.totalBefore = track.moments.total[window[0]];
    return after;
  }
  const result = emptySums(track);
  const [begin, end] = window;
  const spans = track.spans;
  for (let i = 0; i < spans.stack.length; i++) {
    const born = spans.from[i];
    if (born <= begin || born > end || track.remainders.has(spans.stack[i])) continue;
    if ((spans.to[i] > end) === (view === "leaked")) addSpan(result, spans, i);
  }
  const churned = track.churned;
  if (view === "churned" && churned) {
    for (let i = 0; i < churned.stack.length; i++) {
      if (churned.from[i] > begin && churned.from[i] <= end) addSpan(result, churned, i);
    }
  }
  result.total = result.bytes.reduce((sum, bytes) => sum + bytes, 0);
  return result;
}

function emptySums(track) {
  const length = track.stacks.length;
  return { bytes: new Float64Array(length), count: new Float64Array(length), total: 0 };
}

function addSpan(result, spans, i) {
  result.bytes[spans.stack[i]] += spans.bytes[i];
  result.count[spans.stack[i]] += spans.count[i];
}

function liveBytes(track, moment) {
  const result = emptySums(track);
  const spans = track.spans;
  for (let i = 0; i < spans.stack.length; i++) {
    if (spans.from[i] <= moment && moment < spans.to[i]) addSpan(result, spans, i);
  }
  shareOut(track, moment, result.bytes);
  fit(result.bytes, track.moments.total[moment]);
  result.total = track.moments.total[moment];
  return result;
}

// Late frees make the blocks exceed the allocator's bytes: scales them down in proportion.
function fit(bytes, total) {
  const sum = bytes.reduce((all, some) => all + some, 0);
  if (sum <= total) return;
  let done = 0;
  let given = 0;
  for (let stack = 0; stack < bytes.length; stack++) {
    done += bytes[stack];
    const upto = Math.floor(total * (done / sum));
    bytes[stack] = upto - given;
    given = upto;
  }
}

// Where only sampled allocations have stacks, shares all bytes in proportion to each stack's
// weight.
function shareOut(track, moment, bytes) {
  if (track.estimates.size === 0) return;
  let all = 0;
  for (const stack of track.estimates) all += bytes[stack];
  const shared = track.moments.shared[moment];
  let done = 0;
  let given = 0;
  for (const stack of [...track.estimates].sort((a, b) => a - b)) {
    done += bytes[stack];
    const upto = all > 0 ? Math.floor(shared * (done / all)) : 0;
    bytes[stack] = upto - given;
    given = upto;
  }
}

// A tree of frames with the bytes of all stacks through each. `callersOf` keeps only the stacks of
// a line, as seen from it.
function frameTree(track, sums, { inverted = false, callersOf = null } = {}) {
  const root = newNode(-1, null);
  for (let stack = 0; stack < sums.bytes.length; stack++) {
    const bytes = sums.bytes[stack];
    const before = sums.before ? sums.before[stack] : 0;
    if (!(bytes > 0) && !(before > 0)) continue;
    let frames = stackFrames(track, stack);
    if (callersOf) {
      const at = frames.findLastIndex((frame) => isLine(frame, callersOf));
      if (at < 0) continue;
      frames = frames.slice(0, at + 1);
    }
    if (inverted || callersOf) frames = [...frames].reverse();
    grow(root, frames, [bytes, before, sums.count[stack]]);
  }
  return root;
}

// Adds bytes now and before, and blocks, to a tree along a path.
function grow(root, frames, [bytes, before, count]) {
  let node = root;
  addBytes(node, bytes, before, count);
  for (const frame of frames) {
    let child = node.children.get(frame);
    if (!child) {
      child = newNode(frame, node);
      node.children.set(frame, child);
    }
    addBytes(child, bytes, before, count);
    node = child;
  }
}

function newNode(frame, parent) {
  return { frame, parent, bytes: 0, before: 0, count: 0, children: new Map(), depth: parent ? parent.depth + 1 : 0 };
}

function addBytes(node, bytes, before, count) {
  node.bytes += bytes;
  node.before += before;
  node.count += count;
}

function isLine(frame, place) {
  const [, file, line] = page.figures.frames[frame];
  return file === place.file && line === place.line && file >= 0;
}

function isLibrary(frame) {
  const file = page.figures.frames[frame][1];
  return file >= 0 && page.figures.files[file].library;
}

// The frame that a stack's bytes are attributed to: the innermost of the program, else the
// innermost of all.
function chargedFrame(frames) {
  for (let i = frames.length - 1; i >= 0; i--) {
    const file = page.figures.frames[frames[i]][1];
    if (file >= 0 && !page.figures.files[file].library) return frames[i];
  }
  return frames[frames.length - 1];
}

// By line its own bytes, and the bytes of all stacks through it. The own bytes of all lines add up
// to the total.
function lineRows(track, sums) {
  const rows = new Map();
  const row = (frame) => {
    const [name, file, line] = page.figures.frames[frame];
    const key = file < 0 ? `:${name}` : `${file}:${line}`;
    let found = rows.get(key);
    if (!found) {
      found = { key, frame, name, file, line, own: 0, through: 0, before: 0, blocks: 0 };
      rows.set(key, found);
    }
    return found;
  };
  for (let stack = 0; stack < sums.bytes.length; stack++) {
    const bytes = sums.bytes[stack];
    const before = sums.before ? sums.before[stack] : 0;
    if (!(bytes > 0) && !(before > 0)) continue;
    const frames = stackFrames(track, stack);
    const charged = row(chargedFrame(frames));
    charged.own += bytes;
    charged.before += before;
    charged.blocks += sums.count[stack];
    const seen = new Set();
    for (const frame of frames) {
      const through = row(frame);
      if (seen.has(through)) continue;
      seen.add(through);
      through.through += bytes;
    }
  }
  return [...rows.values()];
}

// The last item not later than `time`; else the first.
function atOrBefore(list, time) {
  let found = list[0];
  for (const thing of list) {
    if (thing.time <= time) found = thing;
  }
  return found;
}

function nearest(list, time) {
  let found = null;
  for (const thing of list) {
    if (!found || Math.abs(thing.time - time) < Math.abs(found.time - time)) found = thing;
  }
  return found;
}

// The number of the key moment nearest to a time.
function momentAt(track, time) {
  const times = track.moments.time;
  let best = 0;
  for (let i = 1; i < times.length; i++) {
    if (Math.abs(times[i] - time) < Math.abs(times[best] - time)) best = i;
  }
  return best;
}

// Bytes of the job outside of PyTorch's segments at a time; null if unknown.
function outsideAt(track, time) {
  const usage = track.usage.filter((reading) => reading[0] <= time).at(-1) ?? track.usage[0];
  if (!usage || usage[2] === null) return null;
  const reserved = reservedAt(track, usage[0]);
  return reserved === null ? null : Math.max(0, usage[2] - reserved);
}

function reservedAt(track, time) {
  const { levels } = track;
  const column = Math.min(levels.reserved.length - 1, Math.max(0, Math.floor((time - levels.from) / levels.width)));
  return levels.reserved[column] ?? null;
}
