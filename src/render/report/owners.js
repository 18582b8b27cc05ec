// The owners of the memory, from the snapshot nearest to the moment.

function drawOwners() {
  const { track } = page;
  const panel = byId("owners");
  const time = track.moments.time[page.shownMoment()];
  const snapshot = nearest(track.snapshots, time);
  if (!snapshot) {
    panel.replaceChildren(element("p", { className: "detail" }, "The recording has no snapshots of owners: record with --owners to see what the memory is for and who holds it."));
    return;
  }
  const away = Math.abs(snapshot.time - time);
  const order = away < 1000 ? "at this moment" : `${secondsText(away)} ${snapshot.time < time ? "before" : "after"} this moment, which is the nearest`;
  const bar = element("div", { className: "kinds" }, ...snapshot.categories.map(([name, bytes]) =>
    element("i", { title: `${name} ${bytesText(bytes)}`, style: { flex: `${bytes} 0 0`, background: KIND_COLOURS[name] ?? KIND_COLOURS.unknown } })));
  const names = element("p", { id: "kind-names", className: "detail" }, snapshot.categories.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(" · "));
  const rows = snapshot.owners.map(([kind, owner, bytes, count, frees]) => element("tr", {},
    element("td", { className: "n share", style: { "--share": `${((100 * bytes) / Math.max(1, snapshot.allocated)).toFixed(1)}%` } }, `${bytesText(bytes)} · ${shareText(bytes, snapshot.allocated)}`),
    element("td", { className: "n wide" }, countText(count)), element("td", { className: "n wide" }, freesText(frees)), element("td", {}, kind), element("td", { className: "place mono" }, owner)));
  panel.replaceChildren(
    element("p", { className: "detail" }, `A snapshot at ${secondsText(snapshot.time)} (${order}) found ${bytesText(snapshot.allocated)} allocated:`),
    bar, names,
    element("table", {}, element("thead", {}, element("tr", {}, element("th", { className: "n" }, "Bytes"), element("th", { className: "n wide" }, "Storages"), element("th", { className: "n wide", title: "What comes back if this reference alone goes" }, "Frees"), element("th", {}, "What for"), element("th", {}, "Held by"))),
      element("tbody", {}, ...rows)),
    element("p", { className: "detail" }, snapshot.owners_left_out ? `${countText(snapshot.owners_left_out)} smaller owners are not listed` : ""));
}

function freesText(frees) {
  if (!frees) return "";
  const [atOnce, afterCollect] = frees;
  return afterCollect ? `${bytesText(atOnce + afterCollect)}, ${bytesText(afterCollect)} of it after gc.collect()` : bytesText(atOnce);
}
