// The sandwich: one function, with its callers above and its callees below.

// The stacks through a function as two trees that begin at it: its callers and its callees. A
// recursive function counts from its outermost call, so no byte counts twice.
function sandwichTrees(track, sums, frame) {
  const [name, file] = page.figures.frames[frame];
  const isFunction = (other) => page.figures.frames[other][0] === name && page.figures.frames[other][1] === file;
  const trees = { callers: newNode(-1, null), callees: newNode(-1, null) };
  for (let stack = 0; stack < sums.bytes.length; stack++) {
    const amounts = [sums.bytes[stack], sums.before ? sums.before[stack] : 0, sums.count[stack]];
    if (!(amounts[0] > 0) && !(amounts[1] > 0)) continue;
    const frames = stackFrames(track, stack);
    const at = frames.findIndex(isFunction);
    if (at < 0) continue;
    grow(trees.callers, frames.slice(0, at).reverse(), amounts);
    grow(trees.callees, frames.slice(at), amounts);
  }
  return trees;
}

// The boxes of both trees, with the function between them.
function layoutSandwich(width) {
  const whole = Math.max(extent(flame.root), extent(flame.callers));
  const perByte = whole > 0 ? width / whole : 0;
  const above = [];
  placeChildren(above, flame.callers, 0, perByte, -1, -1);
  const middle = -Math.min(0, ...above.map((box) => box.depth));
  const boxes = [{ node: flame.root, x: 0, width, depth: middle }];
  placeChildren(boxes, flame.root, 0, perByte, middle + 1, 1);
  return [...above.map((box) => ({ ...box, depth: box.depth + middle })), ...boxes];
}

function sandwichText() {
  const [name, file] = page.figures.frames[page.state.sandwich];
  return file < 0 ? name : `${name} (${page.figures.files[file].name})`;
}

// Where an arrow key leads from a node: away from the function, or back.
function sandwichStep(node, key, children) {
  let isAbove = node === flame.callers;
  for (let up = node.parent; up; up = up.parent) isAbove ||= up === flame.callers;
  if (node === flame.root) return key === "ArrowUp" ? children(flame.callers)[0] : children(node)[0];
  if ((key === "ArrowUp") === isAbove) return children(node)[0];
  return node.parent === flame.callers ? flame.root : node.parent;
}
