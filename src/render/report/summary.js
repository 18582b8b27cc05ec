// The sentence about what is shown, and the figures beside it.

function drawSummary() {
  const { recording, track, state } = page;
  const sums = page.sums;
  const sentence = byId("sentence");
  sentence.replaceChildren(...headline(track, state, sums));
  const more = moreText(recording, track, state, sums);
  if (more.length) sentence.append(element("span", { className: "more" }, more.join(" ")));
  byId("warnings").replaceChildren(...recording.warnings.map((text) => element("p", {}, `⚠ ${text}`)));
  byId("cards").replaceChildren(...cards(recording, track, state).map(([name, value, note]) =>
    element("div", { className: "card" }, element("span", {}, name), element("b", {}, value), element("span", {}, note))));
}

// The peak of the recording; no kept moment is higher.
function peakBytes(track) {
  return track.counted_peak ? track.counted_peak[0] : track.moments.total[track.moments.peak];
}

function headline(track, state, sums) {
  const { recording } = page;
  const strong = (text) => element("strong", {}, text);
  const times = track.moments.time;
  const parts = [];
  const window = state.window && state.view !== "live" ? state.window : null;
  if (window) {
    const [begin, end] = window.map((moment) => secondsText(times[moment]));
    const length = secondsText(times[window[1]] - times[window[0]]);
    if (state.view === "leaked") {
      parts.push(strong(bytesText(sums.total)), ` allocated in the ${length} from ${begin} to ${end} was still live at the end.`);
    } else if (state.view === "churned") {
      parts.push(strong(bytesText(sums.total)), ` was allocated and freed again in the ${length} from ${begin} to ${end}.`);
      if (!track.churned) parts.push(" This is a sampled recording: what came and went between two snapshots is not in it.");
    } else {
      const grown = sums.total - sums.totalBefore;
      parts.push(strong(`${grown < 0 ? "−" : "+"}${bytesText(Math.abs(grown))}`),
        ` from ${begin} (${bytesText(sums.totalBefore)}) to ${end} (${bytesText(sums.total)}).`);
    }
  } else {
    const moment = page.shownMoment();
    const isPeak = moment === track.moments.peak;
    const name = track.kind === "torch" ? `on ${track.name}` : track.name;
    const nearPeak = peakBytes(track) > sums.total ? `Near its peak of ${bytesText(peakBytes(track))}, ` : "At its peak, ";
    parts.push(isPeak ? nearPeak : "At ", isPeak ? `${secondsText(times[moment])} in, ` : `${secondsText(times[moment])} `,
      strong(bytesText(sums.total)), ` was allocated ${name}`);
    const step = page.recording.iterations.find(([from, to]) => from <= times[moment] && times[moment] <= to);
    if (step) parts.push(`, in step ${step[2]}`);
    parts.push(".");
  }
  const rows = lineRows(track, sums).filter((row) => row.file >= 0 && row.own > 0);
  const value = (row) => (window && state.view === "difference" ? Math.abs(row.own - row.before) : row.own);
  const top = rows.sort((a, b) => value(b) - value(a))[0];
  if (top && value(top) > 0) {
    const code = element("code", {}, sourceLine(top.file, top.line)?.trim() || top.name);
    const isChange = window && state.view === "difference";
    const amount = isChange ? `${bytesText(top.own - top.before)} more` : `${shareText(top.own, sums.total)} of it (${bytesText(top.own)})`;
    // A sample shows what was running, not what allocated.
    const verbs = {
      sampled: ["was allocated in or near", "is from or near"],
      followed: ["was most likely allocated by", "is most likely from"],
    };
    const by = (verbs[recording.sharpness] ?? ["was allocated by", "is from"])[isChange ? 1 : 0];
    parts.push(` ${amount} ${by} `, code, ` in ${placeText(top)}.`);
  }
  return parts;
}

function moreText(recording, track, state, sums) {
  const more = [];
  const moment = page.shownMoment();
  const time = track.moments.time[moment];
  const total = track.moments.total[moment];
  const snapshot = nearest(track.snapshots, time);
  if (snapshot && (!state.window || state.view === "live")) {
    const isNear = Math.abs(snapshot.allocated - total) <= 0.1 * total;
    const largest = [...snapshot.categories].sort((a, b) => b[1] - a[1]).slice(0, 4);
    const away = Math.abs(snapshot.time - time);
    const when = away < 1000 ? "" : ` (by the snapshot ${secondsText(away)} ${snapshot.time < time ? "before" : "after"}, at ${bytesText(snapshot.allocated)})`;
    if (!isNear) more.push(`Owners were looked at ${secondsText(away)} ${snapshot.time < time ? "before" : "after"}, when ${bytesText(snapshot.allocated)} was allocated: see Owners.`);
    else more.push(`What it is for${when}: ${largest.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", ")}.`);
  }
  const rest = lineRows(track, sums).filter((row) => row.file < 0 && row.own > 0.02 * sums.total && row.name.startsWith("["));
  if (rest.length) more.push(`Without a line: ${rest.map((row) => `${row.name} ${bytesText(row.own)}`).join(", ")}.`);
  const counted = track.counted_peak;
  if (counted && moment === track.moments.peak && counted[0] > track.moments.total[moment]) {
    const [from, to] = counted[1].map((time) => secondsText(time / 1e3));
    const when = from === to ? `at ${to}` : `between ${from} and ${to}`;
    more.push(`The allocator had ${bytesText(counted[0])} ${when}; this is the highest moment of which the blocks are known.`);
  }
  if (recording.ooms.length) {
    const [when, , refused] = recording.ooms[0];
    const asked = refused ? ` when ${bytesText(refused)} was asked for` : "";
    more.push(`The job ran out of memory at ${secondsText(when)}${asked}${recording.ooms.length > 1 ? `, ${recording.ooms.length} times in all` : ""}.`);
  }
  if (track.certainty) more.push(track.certainty);
  if (track.phase && moment === track.moments.peak && !state.window) more.push(track.phase);
  return more;
}

function cards(recording, track, state) {
  const moment = page.shownMoment();
  const time = track.moments.time[moment];
  const total = track.moments.total[moment];
  const shown = [];
  const peak = peakBytes(track);
  shown.push(["Allocated", bytesText(total), total === peak ? "the peak" : `${shareText(total, peak)} of the peak of ${bytesText(peak)}`]);
  if (track.kind === "torch") {
    const reserved = track.moments.reserved[moment];
    const free = reserved === null ? null : reserved - total;
    shown.push(["Reserved by PyTorch", reserved === null ? "unknown" : bytesText(reserved),
      free === null ? "" : `${bytesText(Math.max(0, free))} of it free or waiting`]);
    const outside = outsideAt(track, time);
    shown.push(["Outside PyTorch", outside === null ? "unknown" : bytesText(outside), outside === null ? "not told by the driver" : "CUDA context, libraries"]);
    const map = atOrBefore(track.maps, time);
    if (map) {
      const pieces = freePieces(map);
      const when = Math.abs(map.time - time) < 1000 ? "" : `, at ${secondsText(map.time)}`;
      shown.push(["Largest free piece", bytesText(pieces.largest), `${bytesText(pieces.bytes)} free in ${countText(pieces.count)} pieces${when}`]);
    }
    const [used, word] = reserved === null ? [total, "allocated"] : [reserved, "reserved"];
    if (track.capacity) shown.push(["Memory of the GPU", bytesText(track.capacity), `${shareText(used, track.capacity)} of it ${word}`]);
  }
  const words = { exact: "exact", estimated: "estimated", followed: "followed", sampled: "sampled" };
  const notes = { exact: "every allocation recorded", estimated: "some allocations have stacks", followed: "lines: see what is proven and probable", sampled: "lines: see what is proven and probable" };
  shown.push(["How it is known", words[recording.sharpness], notes[recording.sharpness]]);
  return shown;
}

function freePieces(map) {
  const pieces = { count: 0, bytes: 0, largest: 0, whole: 0, waiting: 0 };
  for (const [size, , , states, sizes] of map.segments) {
    let used = false;
    for (let i = 0; i < states.length; i++) {
      if (states[i] === 1) pieces.waiting += sizes[i];
      if (states[i] !== 2) {
        used = true;
        continue;
      }
      pieces.count += 1;
      pieces.bytes += sizes[i];
      pieces.largest = Math.max(pieces.largest, sizes[i]);
    }
    if (!used) pieces.whole += size;
  }
  return pieces;
}

function drawAbout() {
  const { recording, figures } = page;
  const list = element("dl");
  const add = (name, text) => list.append(element("dt", {}, name), element("dd", {}, text));
  for (const [name, text] of recording.facts) add(name, text);
  const moments = page.track.moments.time.length;
  add("This page", `made by ${figures.made_by}; ${countText(moments)} moments are kept: the highest and the lowest of every stretch, the peak, out-of-memory errors, snapshots of owners`);
  if (figures.redacted) add("Left out", "paths, source text, host and command line");
  if (recording.iterations_left_out) add("Steps", `${countText(recording.iterations_left_out)} are not drawn`);
  for (const [time, text, refused] of recording.ooms) {
    add("Out of memory", `${secondsText(time)}${refused ? `, ${bytesText(refused)} asked of the driver` : ""}${text ? `: ${text}` : ""}`);
  }
  add("Keys", "← → move the moment, P the peak, E the end, 1 to 6 the tabs, / searches, I inverts, T light or dark, Escape zooms out");
  byId("about").replaceChildren(list);
}
