"use strict";
// A paper to draw on with mouse, finger, pen or keys, or to drop pictures on.

const STEP = 1 / 28; // of the paper: how far an arrow key moves the pen
const PEN = 4 / 105; // of the paper: as wide as the server draws it
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

class Pad {
  // onStrokes(strokes, finished) is called while somebody draws; onFiles(files) when pictures are chosen or dropped.
  constructor(root, { label, hint, draws, onStrokes, onFiles }) {
    Object.assign(this, { root, draws, onStrokes, onFiles, strokes: [], cursor: null, drawing: false });
    this.canvas = element("canvas", { className: "ink", tabIndex: draws ? 0 : -1 });
    this.hint = element("span", { className: "hint", textContent: hint });
    this.paper = element("div", { className: "paper" }, this.canvas, this.hint);
    this.tools = element("div", { className: "tools" });
    root.append(this.paper, this.tools);
    this.file = element("input", { type: "file", accept: "image/*", multiple: true });
    this.file.addEventListener("change", () => { this.onFiles([...this.file.files]); this.file.value = ""; });
    this.tools.append(element("label", { className: "button" }, "Photo", this.file));
    this.name(label);
    root.classList.toggle("photos", !draws);
    if (draws) this.listen();
    this.acceptDrops();
    new ResizeObserver(() => this.paint()).observe(this.paper);
  }

  name(label) {
    this.canvas.setAttribute("role", this.draws ? "application" : "img");
    const keys = " Arrow keys move the pen, Space puts it down or up, Backspace removes a stroke.";
    this.canvas.setAttribute("aria-label", label + (this.draws ? keys : ""));
    this.file.setAttribute("aria-label", `Choose photos: ${label}`);
  }

  button(text, onClick) {
    const made = element("button", { type: "button", textContent: text });
    made.addEventListener("click", onClick);
    this.tools.prepend(made);
    return made;
  }

  clear() {
    this.strokes = [];
    this.picture = null;
    this.paint();
  }

  // Show a picture in the place of a drawing.
  show(picture) {
    this.strokes = [];
    this.picture = picture;
    this.paint();
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const within = (value, size) => Math.min(1, Math.max(0, value / size));
    return [within(event.clientX - box.left, box.width), within(event.clientY - box.top, box.height)];
  }

  begin(point) {
    if (this.picture) this.clear();
    this.strokes.push([point]);
    this.drawing = true;
    this.changed(false);
  }

  extend(...points) {
    this.strokes.at(-1).push(...points);
    this.changed(false);
  }

  changed(finished) {
    this.paint();
    this.onStrokes(this.strokes, finished);
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || this.drawing) return;
      event.preventDefault(); // no scrolling, no selection
      canvas.focus({ preventScroll: true, focusVisible: false });
      canvas.setPointerCapture(event.pointerId);
      this.cursor = null;
      this.begin(this.at(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.drawing || !canvas.hasPointerCapture(event.pointerId)) return;
      const passed = event.getCoalescedEvents?.() ?? [];
      this.extend(...(passed.length ? passed : [event]).map((each) => this.at(each)));
    });
    const end = (event) => {
      if (!this.drawing || !canvas.hasPointerCapture(event.pointerId)) return;
      this.drawing = false;
      this.changed(true);
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.lift());
  }

  key(event) {
    const known = event.key in ARROWS || [" ", "Backspace", "Delete"].includes(event.key);
    if (!known || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    if (event.key in ARROWS) {
      const [x, y] = this.cursor ?? [0.5, 0.5];
      const [right, down] = ARROWS[event.key];
      const within = (value) => Math.min(1, Math.max(0, value));
      this.cursor = [within(x + right * STEP), within(y + down * STEP)];
      if (this.drawing) this.extend(this.cursor);
    } else if (event.key === " ") {
      this.cursor ??= [0.5, 0.5];
      if (this.drawing) this.lift();
      else this.begin(this.cursor);
    } else {
      this.lift();
      this.strokes.pop();
      this.picture = null;
      this.changed(true);
    }
    this.paint();
  }

  lift() {
    if (this.drawing) {
      this.drawing = false;
      this.changed(true);
    }
  }

  acceptDrops() {
    const { paper } = this;
    const over = (event) => {
      event.preventDefault();
      paper.classList.add("dropping");
    };
    paper.addEventListener("dragenter", over);
    paper.addEventListener("dragover", over);
    paper.addEventListener("dragleave", () => paper.classList.remove("dropping"));
    paper.addEventListener("drop", (event) => {
      event.preventDefault();
      paper.classList.remove("dropping");
      this.onFiles([...event.dataTransfer.files]);
    });
  }

  paint() {
    const side = Math.round(this.paper.clientWidth * devicePixelRatio);
    if (this.canvas.width !== side) this.canvas.width = this.canvas.height = side;
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, side, side);
    if (this.picture) {
      context.imageSmoothingEnabled = false;
      context.drawImage(this.picture, 0, 0, side, side);
    }
    Object.assign(context, { lineWidth: Math.max(PEN * side, 2), lineCap: "round", lineJoin: "round", strokeStyle: "#111" });
    for (const stroke of this.strokes) {
      context.beginPath();
      for (const [x, y] of [stroke[0], ...stroke]) context.lineTo(x * side, y * side); // the first twice: a dot is seen
      context.stroke();
    }
    this.hint.hidden = Boolean(this.picture || this.strokes.length);
    this.showCursor();
  }

  showCursor() {
    this.mark?.remove();
    if (!this.cursor) return;
    this.mark = element("span", { className: this.drawing ? "cursor down" : "cursor" });
    this.mark.style.left = `${100 * this.cursor[0]}%`;
    this.mark.style.top = `${100 * this.cursor[1]}%`;
    this.paper.append(this.mark);
  }
}
