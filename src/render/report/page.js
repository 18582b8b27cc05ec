// The page: its state, what depends on it, and the address that stores it.

const TABS = { flame: "Flamegraph", lines: "Lines", source: "Source", owners: "Owners", modules: "Modules", blocks: "Blocks", about: "About" };

const page = {
  figures: null, recording: null, track: null, sums: null,
  state: {
    recording: 0, track: 0, moment: 0, window: null, view: "live", tab: "flame", inverted: false, search: "", callersOf: null, sandwich: null,
    lineSearch: "", allLines: false, sort: "own", sortUp: false, file: null,
  },

  // The moment for tables of a single moment.
  shownMoment() {
    return this.state.window ? this.state.window[1] : this.state.moment;
  },

  change(changes) {
    Object.assign(this.state, changes);
    this.draw();
    this.remember();
  },

  chooseMoment(moment) {
    this.change({ moment, window: null, view: "live" });
  },

  chooseWindow(a, b) {
    const [begin, end] = [Math.min(a, b), Math.max(a, b)];
    if (begin === end) return;
    const view = this.state.window ? this.state.view : "leaked";
    this.change({ window: [begin, end], view, moment: end });
  },

  showCallers(file, line) {
    this.change({ callersOf: { file, line }, sandwich: null, inverted: false, search: "", tab: "flame" });
    byId("flamegraph").focus({ preventScroll: true });
  },

  // The function of a frame with its callers and callees; `null` shows all stacks again.
  showSandwich(frame) {
    this.change({ sandwich: frame, callersOf: null, inverted: false, tab: "flame" });
    byId("flamegraph").focus({ preventScroll: true });
  },

  chooseTrack(recording, track) {
    const { state, figures } = this;
    const time = this.track ? this.track.moments.time[this.shownMoment()] : null;
    const wasPeak = !this.track || (!state.window && state.moment === this.track.moments.peak);
    state.recording = Math.min(recording, figures.recordings.length - 1);
    this.recording = figures.recordings[state.recording];
    state.track = Math.min(track, this.recording.tracks.length - 1);
    this.track = this.recording.tracks[state.track];
    state.moment = wasPeak ? this.track.moments.peak : momentAt(this.track, time);
    Object.assign(state, { window: null, view: "live", callersOf: null, sandwich: null });
  },

  draw() {
    this.sums = stackBytes(this.track, this.state);
    drawSummary();
    drawLegend();
    drawTimeline();
    drawMoments();
    drawTabs();
    this.drawPanel();
  },

  drawPanel() {
    for (const tab of Object.keys(TABS)) byId(tab).classList.toggle("shown", tab === this.state.tab);
    const draw = {
      flame: () => { buildFlame(); drawFlameBar(); drawFlame(); },
      lines: drawLines, source: drawSource, owners: drawOwners, modules: drawModules, blocks: drawBlocks, about: drawAbout,
    };
    draw[this.state.tab]();
  },

  // The address stores moment, window and tab, so that it can be passed on.
  remember() {
    const { state, track } = this;
    const words = new URLSearchParams();
    words.set("t", (track.moments.time[this.shownMoment()] / 1e6).toFixed(6));
    if (state.window) words.set("from", (track.moments.time[state.window[0]] / 1e6).toFixed(6));
    if (state.window) words.set("view", state.view);
    words.set("tab", state.tab);
    if (state.recording) words.set("r", state.recording);
    if (state.track) words.set("g", state.track);
    if (state.inverted) words.set("inverted", 1);
    if (state.sandwich !== null) words.set("of", state.sandwich);
    if (state.search) words.set("q", state.search);
    const address = `#${words}`;
    if (address !== window.location.hash) window.history.replaceState(null, "", address);
  },

  recall() {
    const words = new URLSearchParams(window.location.hash.slice(1));
    const { state } = this;
    const number = (name) => Math.max(0, Number.parseInt(words.get(name) ?? "0", 10) || 0);
    this.chooseTrack(number("r"), words.has("g") || words.has("r") ? number("g") : state.track);
    const at = (name) => momentAt(this.track, Number.parseFloat(words.get(name)) * 1e6);
    const isTime = (name) => words.has(name) && Number.isFinite(Number.parseFloat(words.get(name)));
    if (isTime("t")) state.moment = at("t");
    if (isTime("t") && isTime("from") && at("from") < at("t")) {
      state.window = [at("from"), at("t")];
      state.view = Object.hasOwn(VIEWS, words.get("view") ?? "") ? words.get("view") : "leaked";
    }
    if (Object.hasOwn(TABS, words.get("tab") ?? "")) state.tab = words.get("tab");
    state.inverted = words.has("inverted");
    state.sandwich = words.has("of") && number("of") < this.figures.frames.length ? number("of") : null;
    state.search = words.get("q") ?? "";
  },
};

function drawTabs() {
  const parts = Object.entries(TABS).map(([tab, text], number) => {
    const made = button(text, `${text} (${number + 1})`, () => page.change({ tab }));
    made.setAttribute("role", "tab");
    made.setAttribute("aria-controls", tab);
    made.setAttribute("aria-selected", String(tab === page.state.tab));
    return made;
  });
  byId("tabs").replaceChildren(...parts);
}

function drawChoices() {
  const { figures, state } = page;
  const choices = [];
  figures.recordings.forEach((recording, r) => recording.tracks.forEach((track, g) => {
    const peak = bytesText(peakBytes(track));
    const label = figures.recordings.length > 1 ? `${recording.label}, ` : "";
    choices.push(element("option", { value: `${r} ${g}`, selected: r === state.recording && g === state.track }, `${label}${track.name}: ${peak}`));
  }));
  const select = element("select", {
    id: "memory", on: { change: (event) => { const [r, g] = event.target.value.split(" ").map(Number); page.chooseTrack(r, g); page.change({}); } },
  }, ...choices);
  select.setAttribute("aria-label", "Process and kind of memory");
  byId("choices").replaceChildren(select);
}

// The recording and the device with the highest peak; memory other than PyTorch's only if there is
// no other.
function highestTrack(figures) {
  let best = { rank: -1, recording: 0, track: 0 };
  figures.recordings.forEach((recording, r) => recording.tracks.forEach((track, g) => {
    const rank = track.top + (track.kind === "torch" ? 2 ** 52 : 0);
    if (rank > best.rank) best = { rank, recording: r, track: g };
  }));
  return best;
}

function chooseTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  themeValues.clear();
  if (page.track) page.draw();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    if (page.state.sandwich !== null) page.showSandwich(null);
    else if (page.state.callersOf) page.change({ callersOf: null });
    else if (flame.zoom !== flame.root) zoomTo(flame.root);
    else if (page.state.window) page.chooseMoment(page.state.window[1]);
    return;
  }
  if (typing) return;
  const { track } = page;
  const moment = page.shownMoment();
  const tab = Object.keys(TABS)[Number(event.key) - 1];
  const actions = {
    ArrowLeft: () => page.chooseMoment(Math.max(0, moment - 1)),
    ArrowRight: () => page.chooseMoment(Math.min(track.moments.time.length - 1, moment + 1)),
    p: () => page.chooseMoment(track.moments.peak),
    e: () => page.chooseMoment(track.moments.time.length - 1),
    i: () => page.change({ inverted: !page.state.inverted, sandwich: null }),
    s: () => {
      const node = flame.hovered ?? flame.selected;
      if (page.state.tab === "flame" && node?.frame >= 0) page.showSandwich(node.frame);
    },
    t: () => chooseTheme(!document.documentElement.classList.contains("dark")),
    "/": () => { if (page.state.tab !== "lines") page.change({ tab: "flame" }); byId(page.state.tab === "lines" ? "line-search" : "flame-search").focus(); },
  };
  const action = tab ? () => page.change({ tab }) : actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

async function start() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  chooseTheme(dark.matches);
  dark.addEventListener("change", () => chooseTheme(dark.matches));
  page.figures = await readFigures();
  const { recording, track } = highestTrack(page.figures);
  Object.assign(page.state, { recording, track });
  page.chooseTrack(recording, track);
  if (window.location.hash) page.recall();
  drawChoices();
  startTimeline();
  startFlame();
  page.draw();
  byId("theme").addEventListener("click", () => chooseTheme(!document.documentElement.classList.contains("dark")));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", () => { page.recall(); drawChoices(); page.draw(); });
  window.addEventListener("resize", () => page.draw());
  window.addEventListener("beforeprint", () => {
    chooseTheme(false);
    buildFlame();
    drawFlameBar();
    for (const draw of [drawFlame, drawLines, drawAbout]) draw();
  });
  window.addEventListener("afterprint", () => chooseTheme(dark.matches));
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start().catch((error) => {
  byId("sentence").textContent = `This report cannot be shown: ${error.message}`;
  throw error;
});
