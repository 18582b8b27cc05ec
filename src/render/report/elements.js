// Elements of the page. Text is inserted as text, never as markup.

function byId(id) {
  return document.getElementById(id);
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    } else if (name in made && name !== "role") {
      made[name] = value;
    } else {
      made.setAttribute(name, value);
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function button(text, title, listener, pressed = null) {
  const made = element("button", { type: "button", title, on: { click: listener } }, text);
  if (pressed !== null) made.setAttribute("aria-pressed", String(pressed));
  return made;
}

// Colours of the theme, cached because a picture needs thousands.
const themeValues = new Map();

function cssValue(name) {
  if (!themeValues.has(name)) themeValues.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return themeValues.get(name);
}

// Makes Enter act like a click.
function pressable(listener) {
  return { click: listener, keydown: (event) => { if (event.key === "Enter") listener(event); } };
}

// A cleared canvas of this height in points, at the screen's resolution.
function canvasContext(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth || canvas.parentElement.clientWidth || 800;
  if (height) canvas.style.height = `${height}px`;
  const tall = height || canvas.clientHeight || 200;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(tall * ratio);
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, tall);
  return { context, width, height: tall };
}

function showTip(event, text) {
  const tip = byId("tip");
  if (!text) {
    tip.hidden = true;
    return;
  }
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - width - 8);
  const below = event.clientY + 18;
  const top = below + height > window.innerHeight ? event.clientY - height - 12 : below;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, top)}px`;
}

function frameText(frame) {
  const [name, file, line] = page.figures.frames[frame];
  if (file < 0) return name;
  const place = page.figures.files[file].name;
  return line > 0 ? `${name} (${place}:${line})` : `${name} (${place})`;
}

function placeText(row) {
  if (row.file < 0) return "";
  const place = page.figures.files[row.file].name;
  return row.line > 0 ? `${place}:${row.line}` : place;
}

function sourceLine(file, line) {
  if (file < 0) return null;
  for (const [first, lines] of page.figures.files[file].source) {
    if (line >= first && line < first + lines.length) return lines[line - first];
  }
  return null;
}

// A colour that depends only on the text.
function hue(text) {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return (hash >>> 0) % 1000;
}
