// Reads the figures from the page, with the columns as arrays of numbers.

async function readFigures() {
  const text = document.getElementById("figures").textContent.replace(/\s+/g, "");
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old for compressed pages (it lacks DecompressionStream, which all have since 2023)");
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const figures = JSON.parse(await new Response(stream).text());
  for (const recording of figures.recordings) {
    for (const track of recording.tracks) prepareTrack(track);
  }
  return figures;
}

function prepareTrack(track) {
  for (const spans of [track.spans, track.churned]) {
    if (!spans) continue;
    for (const column of ["stack", "from", "to"]) spans[column] = Uint32Array.from(spans[column]);
    for (const column of ["bytes", "count"]) spans[column] = Float64Array.from(spans[column]);
  }
  track.estimates = new Set(track.estimates);
  track.remainders = new Set(track.remainders);
  track.top = Math.max(0, ...track.moments.total);
  track.callers = new Map();
}

// The frames of a stack as numbers, from the outermost to the innermost.
function stackFrames(track, stack) {
  let frames = track.callers.get(stack);
  if (!frames) {
    frames = [];
    for (let node = track.stacks[stack]; node >= 0; node = track.parents[node]) frames.push(track.nodes[node]);
    frames.reverse();
    track.callers.set(stack, frames);
  }
  return frames;
}

// Formats numbers with the same units as memspy prints.
function bytesText(value) {
  const sign = value < 0 ? "-" : "";
  let size = Math.abs(value);
  if (size < 1024) return `${sign}${Math.round(size)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  size /= 1024;
  while (size >= 1023.995 && unit + 1 < units.length) {
    size /= 1024;
    unit += 1;
  }
  return `${sign}${size.toFixed(2)} ${units[unit]}`;
}

function shareText(part, whole) {
  if (!(whole > 0)) return "";
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.1) return "<0.1 %";
  return `${share.toFixed(Math.abs(share) < 10 ? 1 : 0)} %`;
}

function secondsText(micros) {
  return `${(micros / 1e6).toFixed(3)} s`;
}

function countText(value) {
  return Math.round(value).toLocaleString("en-US");
}
