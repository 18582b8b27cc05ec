// The owners of the memory, from the snapshot nearest to the moment.

function drawOwners() {
  const { track } = page;
  const panel = byId("owners");
  const time = track.moments.time[page.shownMoment()];
  const look = nearest(track.looks, time);
  if (!look) {
    panel.replaceChildren(element("p", { className: "detail" }, "The recording has no looks at owners: record with --owners to see what the memory is for and who holds it."));
    return;
  }
  const away = Math.abs(look.time - time);
  const order = away < 1000 ? "at this moment" : `${secondsText(away)} ${look.time < time ? "before" : "after"} this moment, which is the nearest`;
  const bar = element("div", { className: "kinds" }, ...look.categories.map(([name, bytes]) =>
    element("i", { title: `${name} ${bytesText(bytes)}`, style: { flex: `${bytes} 0 0`, background: KIND_COLOURS[name] ?? KIND_COLOURS.unknown } })));
  const names = element("p", { id: "kind-names", className: "detail" }, look.categories.map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(" · "));
  const rows = look.owners.map(([kind, owner, bytes, count]) => element("tr", {},
    element("td", { className: "n share", style: { "--share": `${((100 * bytes) / Math.max(1, look.allocated)).toFixed(1)}%` } }, `${bytesText(bytes)} · ${shareText(bytes, look.allocated)}`),
    element("td", { className: "n wide" }, countText(count)), element("td", {}, kind), element("td", { className: "place mono" }, owner)));
  panel.replaceChildren(
    element("p", { className: "detail" }, `A look at ${secondsText(look.time)} (${order}) found ${bytesText(look.allocated)} allocated:`),
    bar, names,
    element("table", {}, element("thead", {}, element("tr", {}, element("th", { className: "n" }, "Bytes"), element("th", { className: "n wide" }, "Storages"), element("th", {}, "What for"), element("th", {}, "Held by"))),
      element("tbody", {}, ...rows)),
    element("p", { className: "detail" }, look.owners_left_out ? `${countText(look.owners_left_out)} smaller owners are not listed` : ""));
}
