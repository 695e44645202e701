"use strict";
// Classes with their examples, the question, and the answers of the learners.

const FIRST_NAMES = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J"];
const $ = (id) => document.getElementById(id);
const classes = []; // {card, input, pad, kept: [pixels], current: pixels or null}
let about, query, panels;

// ---- the server

async function ask(path, body) {
  let response;
  try {
    response = await fetch(path, body === undefined ? {} : { method: "POST", body });
  } catch {
    throw new Error("The server does not answer. Start `metastep play` again, then reload this page.");
  }
  const said = await response.json();
  if (!response.ok) throw new Error(said.error);
  return said;
}

// Run the work again if it was asked for while it ran, so that the newest state counts and requests never queue.
let running = 0;
function latest(work) {
  let busy = false, again = false;
  return async () => {
    again = true;
    if (busy) return;
    busy = true;
    count(1);
    while (again) {
      again = false;
      await work().catch((error) => say(error.message, true));
    }
    busy = false;
    count(-1);
  };
}

function count(change) {
  running += change;
  $("answers").setAttribute("aria-busy", running > 0);
}

let complaints = 0;
function say(text, bad = false) {
  complaints += bad;
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

// ---- pictures as the learner sees them: bytes, in base64

function painted(pixels, canvas = document.createElement("canvas")) {
  const { size, channels } = about;
  const bytes = Uint8Array.from(atob(pixels), (c) => c.charCodeAt(0));
  canvas.width = canvas.height = size;
  canvas.classList.toggle("ink", about.draws);
  const image = new ImageData(size, size);
  for (let i = 0; i < size * size; i++) {
    const colour = [0, 1, 2].map((c) => bytes[(channels === 3 ? c : 0) * size * size + i]);
    image.data.set(about.draws ? [17, 17, 17, bytes[i]] : [...colour, 255], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

async function prepared(file) {
  if (file.size > about.largest) {
    throw new Error(`${file.name} is larger than ${about.largest / 2 ** 20} MiB. Save a smaller copy, and choose that.`);
  }
  try {
    return (await ask("api/picture", file)).pixels;
  } catch (error) {
    throw new Error(error.message.replace(/^This file/, file.name));
  }
}

const drawn = async (strokes) => (strokes.length ? (await ask("api/strokes", JSON.stringify({ strokes }))).pixels : null);

// ---- classes

const examples = (each) => [...each.kept, ...(each.current ? [each.current] : [])];
const taught = () => classes.filter((each) => examples(each).length);
const labelled = (each) => each.input.value.trim() || "unnamed";

function addClass() {
  const card = $("class-card").content.firstElementChild.cloneNode(true);
  const each = { card, input: card.querySelector("input"), kept: [], current: null };
  const free = FIRST_NAMES.find((name) => !classes.some((other) => other.input.value === name));
  each.input.value = free ?? "new";
  const see = latest(async () => {
    each.current = await drawn(each.pad.strokes);
    refresh(each);
  });
  each.pad = new Pad(card.querySelector(".pad"), {
    label: "", hint: about.draws ? "draw an example" : "drop photos here", draws: about.draws,
    onStrokes: (strokes, finished) => finished && see(),
    onFiles: (files) => addFiles(each, files),
  });
  if (about.draws) {
    each.clear = each.pad.button("Clear", () => { each.pad.clear(); see(); });
    each.more = each.pad.button("Keep", () => {
      each.kept.push(each.current);
      each.current = null;
      each.pad.clear();
      refresh(each);
    });
    each.more.title = "Keep this example, and draw another one";
  }
  each.input.addEventListener("input", () => { rename(each); show(lastAnswer); });
  card.querySelector(".remove").addEventListener("click", () => removeClass(each));
  classes.push(each);
  $("classes").append(card);
  rename(each);
  refresh(each);
}

function rename(each) {
  const name = labelled(each);
  each.pad.name(about.draws ? `Draw an example of class ${name}.` : `Photos of class ${name}`);
  each.card.querySelector(".remove").setAttribute("aria-label", `Remove class ${name}`);
}

function removeClass(each) {
  classes.splice(classes.indexOf(each), 1);
  each.card.remove();
  bounds();
  update();
}

function bounds() {
  $("add-class").disabled = classes.length >= about.ways[1];
  for (const each of classes) each.card.querySelector(".remove").disabled = classes.length <= about.ways[0];
}

async function addFiles(each, files) {
  try {
    for (const file of files) {
      if (examples(each).length >= about.shots) throw new Error(`A class takes at most ${about.shots} examples.`);
      each.kept.push(await prepared(file));
    }
    refresh(each);
  } catch (error) {
    refresh(each);
    say(error.message, true);
  }
}

function refresh(each) {
  const shots = each.kept.map((pixels, index) => {
    const remove = element("button", { type: "button", title: "Remove this example" }, painted(pixels));
    remove.setAttribute("aria-label", `Remove example ${index + 1} of class ${labelled(each)}`);
    remove.addEventListener("click", () => { each.kept.splice(index, 1); refresh(each); });
    return element("li", {}, remove);
  });
  each.card.querySelector(".shots").replaceChildren(...shots);
  if (about.draws) {
    each.more.disabled = !each.current || each.kept.length + 1 >= about.shots;
    each.clear.disabled = !each.pad.strokes.length;
  }
  bounds();
  update();
}

// ---- question and answers

let lastAnswer = null;

let heard = 0; // complaints when an answer was last asked for
function update() {
  heard = complaints;
  answer();
}

const answer = latest(async () => {
  const asked = taught();
  if (asked.length < about.ways[0]) {
    lastAnswer = null;
    say(`Give an example of at least ${about.ways[0]} classes.`);
  } else {
    const body = { classes: asked.map(examples), queries: query.pixels ? [query.pixels] : [] };
    const { learners } = await ask("api/answer", JSON.stringify(body));
    lastAnswer = { asked, learners, questioned: Boolean(query.pixels) };
    const number = asked.reduce((sum, each) => sum + examples(each).length, 0);
    const todo = query.pixels ? "" : about.draws ? " Now draw something new." : " Now choose a new photo.";
    // A complaint that came since stays to be read.
    if (heard === complaints) say(`The learner adapted to ${number} examples of ${asked.length} classes in ${duration(learners[0].milliseconds)}.${todo}`);
  }
  show(lastAnswer);
});

const duration = (ms) => (ms < 10 ? `${ms.toFixed(1)} ms` : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function show(answer) {
  panels.forEach((panel, i) => {
    const one = answer?.learners[i];
    panel.time.textContent = one ? `adapted in ${duration(one.milliseconds)}` : "";
    panel.root.classList.toggle("asked", Boolean(answer?.questioned));
    if (one && !one.probabilities) {
      panel.bars.replaceChildren(element("li", { className: "small faint", textContent: "Adapting diverged: no answer." }));
      return;
    }
    const shares = answer?.questioned ? one.probabilities[0] : null;
    const best = shares ? shares.indexOf(Math.max(...shares)) : -1;
    const rows = (answer?.asked ?? []).filter((each) => classes.includes(each));
    panel.bars.replaceChildren(...rows.map((each) => bar(each, shares?.[answer.asked.indexOf(each)], answer.asked.indexOf(each) === best)));
  });
}

function bar(each, share, best) {
  const filled = element("i");
  filled.style.transform = `scaleX(${share ?? 0})`;
  const row = element("div", { className: "row" },
    element("span", { textContent: labelled(each) }),
    element("span", { textContent: share === undefined ? "–" : `${(100 * share).toFixed(share > 0.995 || share < 0.005 ? 0 : 1)} %` }));
  const track = element("div", { className: "track" }, filled);
  track.setAttribute("aria-hidden", "true");
  return element("li", { className: best ? "best" : "" }, row, track);
}

function makePanel({ name, about }) {
  const time = element("span", { className: "time" });
  const bars = element("ul");
  const root = element("section", { className: "card answer" },
    element("h3", { textContent: name }),
    element("p", { className: "small faint" }, about, element("br"), time), bars);
  root.setAttribute("aria-label", name);
  $("answers").append(root);
  return { root, time, bars };
}

function makeQuery() {
  query = { pixels: null };
  const set = (pixels) => {
    query.pixels = pixels;
    $("seen").hidden = !pixels;
    if (pixels) painted(pixels, $("seen").querySelector("canvas"));
    query.clear.disabled = !pixels;
    update();
  };
  const see = latest(async () => set(await drawn(query.pad.strokes)));
  query.pad = new Pad($("query"), {
    label: about.draws ? "Draw something new." : "A new photo", draws: about.draws,
    hint: about.draws ? "draw something new" : "drop a photo here",
    onStrokes: see, // while it is drawn, too
    onFiles: async ([file]) => {
      try {
        const pixels = await prepared(file);
        query.pad.show(painted(pixels));
        set(pixels);
      } catch (error) {
        say(error.message, true);
      }
    },
  });
  query.clear = query.pad.button("Clear", () => { query.pad.clear(); set(null); });
  query.clear.disabled = true;
}

function startOver() {
  for (const each of classes.splice(0)) each.card.remove();
  query.pad.clear();
  query.pixels = null;
  $("seen").hidden = true;
  query.clear.disabled = true;
  for (let i = 0; i < 3; i++) addClass();
}

async function start() {
  about = await ask("api/about");
  if (about.draws) {
    $("lead").textContent = "Draw an example of each class. A learner adapts to them at once and names what you draw next.";
    $("how").textContent = "Draw one of your classes again. All learners adapted to the same examples. Photos of drawings work, too.";
  } else {
    $("how").textContent = "Choose a new photo of one of your classes. All learners adapted to the same photos.";
  }
  panels = about.learners.map(makePanel);
  makeQuery();
  startOver();
  $("add-class").addEventListener("click", () => { addClass(); classes.at(-1).input.select(); });
  $("start-over").addEventListener("click", startOver);
  for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault()); // next to a paper
}

start().catch((error) => say(error.message, true));
