// The timeline: allocated, reserved and outside over time, marks, the moment and the window.

const KIND_COLOURS = {
  "parameters": "#4e79a7", "buffers": "#76b7b2", "gradients": "#e15759", "optimizer state": "#b07aa1",
  "saved for backward": "#f28e2b", "other tensors": "#59a14f", "in no tensor": "#9c755f", "rounding": "#bab0ac", "unknown": "#8a939e",
};
const timelineSpace = { left: 74, right: 12, top: 16, bottom: 22 };

function timelineScale(width, height) {
  const { track, recording } = page;
  const { left, right, top, bottom } = timelineSpace;
  // An exact recording has no levels before its probes are in place.
  const from = Math.max(recording.from, track.levels.from + Math.max(0, track.levels.highest.findIndex((value) => value !== null)) * track.levels.width);
  const to = Math.max(recording.to, from + 1);
  let most = track.top;
  for (const column of ["highest", "reserved"]) for (const value of track.levels[column]) most = Math.max(most, value ?? 0);
  const reserved = most;
  for (const [time, , used] of track.usage) {
    // Memory outside is drawn unless it would flatten the rest; the legend says so.
    if (used !== null && used < 1.5 * reserved) most = Math.max(most, used);
  }
  most = Math.max(1, most * 1.04);
  return {
    most, from, to, isWholeDrawn: usageTop(track) <= most,
    x: (time) => left + Math.max(0, (time - from) / (to - from)) * (width - left - right),
    y: (bytes) => height - bottom - (Math.min(bytes, most) / most) * (height - top - bottom),
    time: (x) => from + ((x - left) / (width - left - right)) * (to - from),
    right: width - right, base: height - bottom,
  };
}

function usageTop(track) {
  return Math.max(0, ...track.usage.map((reading) => reading[2] ?? 0));
}

function drawTimeline() {
  const { track, recording, state } = page;
  const { context, width, height } = canvasContext(byId("timeline"));
  const scale = timelineScale(width, height);
  const text = cssValue("--text");
  const soft = cssValue("--soft");
  context.font = "12px system-ui, sans-serif";
  drawGrid(context, scale, width, soft);
  const { levels } = track;
  const at = (column) => scale.x(levels.from + column * levels.width);
  const step = (values, upward) => {
    context.beginPath();
    let begun = false;
    for (let i = 0; i < values.length; i++) {
      if (values[i] === null) continue;
      const y = scale.y(values[i]);
      if (!begun) context.moveTo(at(i), upward ? scale.base : y);
      begun = true;
      context.lineTo(at(i), y);
      context.lineTo(Math.min(at(i + 1), scale.right), y);
    }
    if (begun && upward) context.lineTo(Math.min(at(values.length), scale.right), scale.base);
  };
  step(levels.highest, true);
  context.fillStyle = cssValue("--allocated");
  context.globalAlpha = track.snapshots.length ? 0.35 : 0.5;
  context.fill();
  step(levels.lowest, true);
  context.fillStyle = cssValue("--lowest");
  context.globalAlpha = track.snapshots.length ? 0.25 : 0.75;
  context.fill();
  context.globalAlpha = 1;
  drawKinds(context, scale, track);
  step(levels.highest, false);
  context.strokeStyle = cssValue("--allocated");
  context.lineWidth = 1.3;
  context.stroke();
  step(levels.reserved, false);
  context.strokeStyle = cssValue("--reserved");
  context.setLineDash([5, 3]);
  context.stroke();
  context.setLineDash([]);
  if (scale.isWholeDrawn) drawUsage(context, scale, track);
  drawMarks(context, scale, track, recording);
  drawChosen(context, scale, track, state, text);
}

function drawGrid(context, scale, width, soft) {
  const rough = scale.most / 4;
  const unit = 2 ** Math.floor(Math.log2(rough));
  const step = rough / unit > 1.5 ? unit * 2 : unit;
  context.fillStyle = soft;
  context.strokeStyle = cssValue("--line");
  context.lineWidth = 1;
  context.textAlign = "right";
  for (let bytes = 0; bytes <= scale.most; bytes += step) {
    const y = Math.round(scale.y(bytes)) + 0.5;
    context.beginPath();
    context.moveTo(timelineSpace.left, y);
    context.lineTo(scale.right, y);
    context.stroke();
    context.fillText(bytesText(bytes).replace(".00", ""), timelineSpace.left - 8, y + 4);
  }
  const seconds = (scale.to - scale.from) / 1e6;
  const wanted = seconds / Math.max(3, Math.floor(width / 130));
  const power = 10 ** Math.floor(Math.log10(wanted));
  const every = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= wanted);
  const digits = Math.max(0, -Math.floor(Math.log10(every)));
  const last = scale.to / 1e6;
  for (let time = Math.ceil(scale.from / 1e6 / every) * every; time <= last; time += every) {
    const x = scale.x(time * 1e6);
    context.textAlign = x > scale.right - 24 ? "right" : "center";
    context.fillText(`${time.toFixed(digits)} s`, x, scale.base + 16);
  }
}

// What the memory is for, from each snapshot to the next, up to the allocated bytes.
function drawKinds(context, scale, track) {
  const { levels, snapshots } = track;
  snapshots.forEach((snapshot, number) => {
    // An old snapshot says little about now.
    const until = Math.min(snapshots[number + 1]?.time ?? scale.to, snapshot.time + (scale.to - scale.from) / 12);
    let below = 0;
    const first = Math.max(0, Math.floor((snapshot.time - levels.from) / levels.width));
    const last = Math.min(levels.lowest.length, Math.ceil((until - levels.from) / levels.width));
    for (const [name, bytes] of snapshot.categories) {
      context.fillStyle = KIND_COLOURS[name] ?? KIND_COLOURS.unknown;
      context.beginPath();
      for (let i = first; i < last; i++) {
        const top = Math.min(below + bytes, levels.highest[i] ?? 0);
        if (top <= below) continue;
        const left = Math.max(scale.x(snapshot.time), scale.x(levels.from + i * levels.width));
        const right = Math.min(scale.x(until), scale.right, scale.x(levels.from + (i + 1) * levels.width) + 0.3);
        context.rect(left, scale.y(top), Math.max(0, right - left), scale.y(below) - scale.y(top));
      }
      context.fill();
      below += bytes;
    }
  });
}

function drawUsage(context, scale, track) {
  const readings = track.usage.filter((reading) => reading[2] !== null);
  if (!readings.length) return;
  context.strokeStyle = cssValue("--outside");
  context.lineWidth = 1.3;
  context.beginPath();
  readings.forEach(([time, , used], number) => {
    const y = scale.y(used);
    if (number === 0) context.moveTo(scale.x(time), y);
    context.lineTo(scale.x(time), y);
    context.lineTo(scale.x(readings[number + 1]?.[0] ?? scale.to), y);
  });
  context.stroke();
}

function drawMarks(context, scale, track, recording) {
  const soft = cssValue("--soft");
  context.fillStyle = soft;
  const room = scale.right / Math.max(1, recording.iterations.length);
  recording.iterations.forEach(([, to]) => {
    context.globalAlpha = room > 5 ? 0.8 : 0.4;
    context.fillRect(scale.x(to), scale.base, 1, 5);
  });
  context.globalAlpha = 1;
  const greatest = Math.max(1, ...track.reserved_changes.map(([, by]) => Math.abs(by)));
  for (const [time, by] of track.reserved_changes) {
    const x = scale.x(time);
    const size = 3 + (4 * Math.abs(by)) / greatest;
    context.beginPath();
    context.moveTo(x - size / 2, by > 0 ? timelineSpace.top : timelineSpace.top - size);
    context.lineTo(x + size / 2, by > 0 ? timelineSpace.top : timelineSpace.top - size);
    context.lineTo(x, by > 0 ? timelineSpace.top - size : timelineSpace.top);
    context.fill();
  }
  context.fillStyle = cssValue("--oom");
  context.strokeStyle = cssValue("--oom");
  for (const [time] of recording.ooms) {
    const x = Math.round(scale.x(time)) + 0.5;
    context.beginPath();
    context.moveTo(x, timelineSpace.top - 8);
    context.lineTo(x, scale.base);
    context.stroke();
    const isLate = x > scale.right - 60;
    context.textAlign = isLate ? "right" : "left";
    context.fillText("OOM", x + (isLate ? -4 : 4), timelineSpace.top + 2);
  }
}

function drawChosen(context, scale, track, state, text) {
  const times = track.moments.time;
  if (state.window) {
    const [begin, end] = state.window.map((moment) => scale.x(times[moment]));
    context.fillStyle = cssValue("--accent");
    context.globalAlpha = 0.18;
    context.fillRect(begin, timelineSpace.top, Math.max(1, end - begin), scale.base - timelineSpace.top);
    context.globalAlpha = 1;
    context.fillRect(begin, timelineSpace.top, 1, scale.base - timelineSpace.top);
    context.fillRect(end, timelineSpace.top, 1, scale.base - timelineSpace.top);
  }
  const moment = page.shownMoment();
  const x = scale.x(times[moment]);
  const y = scale.y(track.moments.total[moment]);
  context.fillStyle = text;
  if (!state.window) context.fillRect(Math.round(x), timelineSpace.top, 1, scale.base - timelineSpace.top);
  context.beginPath();
  context.arc(x, y, 4.5, 0, 7);
  context.fill();
}

function drawLegend() {
  const { track, recording } = page;
  const entries = [["--allocated", "allocated"]];
  const kinds = new Set(track.snapshots.flatMap((snapshot) => snapshot.categories.map(([name]) => name)));
  const parts = [];
  const add = (colour, text) => parts.push(element("span", {}, element("i", { style: { background: colour } }), text));
  for (const [name, text] of entries) add(cssValue(name), text);
  for (const name of Object.keys(KIND_COLOURS)) if (kinds.has(name)) add(KIND_COLOURS[name], name);
  if (track.levels.reserved.some((value) => value !== null)) add(cssValue("--reserved"), "reserved");
  if (usageTop(track) > 0) {
    const isDrawn = timelineScale(1000, 200).isWholeDrawn;
    add(cssValue("--outside"), isDrawn ? "whole job, by the driver" : `whole job, by the driver: up to ${bytesText(usageTop(track))}, above this chart`);
  }
  if (track.reserved_changes.length) parts.push(element("span", {}, "▲▼ segments obtained, returned"));
  if (recording.iterations.length) parts.push(element("span", {}, "❘ end of a step"));
  if (track.snapshots.length) parts.push(element("span", {}, `${countText(track.snapshots.length)} ${track.snapshots.length === 1 ? "snapshot" : "snapshots"} of owners, each drawn for a while, up to what was allocated`));
  byId("legend").replaceChildren(...parts);
}

function startTimeline() {
  const canvas = byId("timeline");
  let begun = null;
  const timeOf = (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = timelineScale(box.width, box.height);
    return Math.min(scale.to, Math.max(scale.from, scale.time(event.clientX - box.left)));
  };
  canvas.addEventListener("pointerdown", (event) => {
    begun = { x: event.clientX, time: timeOf(event) };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const { track } = page;
    const time = timeOf(event);
    const moment = momentAt(track, time);
    showTip(event, event.pointerType === "mouse"
      ? `${secondsText(track.moments.time[moment])}: ${bytesText(track.moments.total[moment])} allocated\nclick: this moment; drag: a window` : null);
    if (begun && Math.abs(event.clientX - begun.x) > 5) page.chooseWindow(momentAt(track, begun.time), moment);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (begun && Math.abs(event.clientX - begun.x) <= 5) page.chooseMoment(momentAt(page.track, begun.time));
    begun = null;
  });
  canvas.addEventListener("pointercancel", () => { begun = null; });
  canvas.addEventListener("pointerleave", (event) => showTip(event, null));
}

// Buttons below the timeline: which moment, and what to show of a window.
function drawMoments() {
  const { track, state, recording } = page;
  const last = track.moments.time.length - 1;
  const moment = page.shownMoment();
  const parts = [
    button("◀", "The moment before (←)", () => page.chooseMoment(Math.max(0, moment - 1))),
    button("▶", "The next moment (→)", () => page.chooseMoment(Math.min(last, moment + 1))),
    button("Peak", "The highest moment (P)", () => page.chooseMoment(track.moments.peak), !state.window && moment === track.moments.peak),
    button("End", "The last moment (E)", () => page.chooseMoment(last), !state.window && moment === last),
  ];
  if (recording.ooms.length) {
    parts.push(button("Out of memory", "The moment of the first out-of-memory error", () => page.chooseMoment(momentAt(track, recording.ooms[0][0]))));
  }
  if (state.window) {
    for (const [view, text] of Object.entries({ live: "Live at its end", leaked: "Leaked", churned: "Churned", difference: "Difference" })) {
      parts.push(button(text, VIEWS[view], () => page.change({ view }), state.view === view));
    }
    parts.push(button("✕ window", "Back to one moment (Escape)", () => page.chooseMoment(state.window[1])));
  } else {
    parts.push(button("Whole recording", "A window over all of it", () => page.chooseWindow(0, last)));
    parts.push(element("span", { className: "note" }, "click the timeline for a moment, drag for a window"));
  }
  byId("moments").replaceChildren(...parts);
}
