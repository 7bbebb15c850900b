// Sorting, filtering and the large view. Text enters the page through textContent only.
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const copy = $("copy");
  if (copy) {
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText($("command").textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren($("command"));
        copy.textContent = "Selected";
      }
      setTimeout(() => { copy.textContent = "Copy"; }, 1600);
    });
  }
  if (!$("cards")) return;

  const data = JSON.parse($("data").textContent);
  const list = $("cards");
  const cards = [...list.children];
  const page = matchMedia("(max-width: 720px)").matches ? 10 : 24;
  let shown = page;
  let visible = cards;

  const number = (card, key) => Number(card.dataset[key]);
  const classes = (card) => card.dataset.classes.trim().split(" ").map(Number);
  // What the attack did is shown before what it could not do and what was wrong without it.
  const rank = (card) => (card.dataset.missed.trim() ? 1 : card.dataset.before.trim() ? 2 : 0);
  const orders = {
    fooled: (a, b) => rank(a) - rank(b) || number(a, "position") - number(b, "position"),
    hard: (a, b) => number(a, "position") - number(b, "position"),
    easy: (a, b) => number(b, "position") - number(a, "position"),
    row: (a, b) => number(a, "row") - number(b, "row"),
    class: (a, b) => classes(a)[0] - classes(b)[0] || number(a, "position") - number(b, "position"),
  };
  const matches = (card) => {
    const missed = card.dataset.missed.split(" ").filter(Boolean);
    const before = card.dataset.before.split(" ").filter(Boolean);
    const wanted = $("missed").value;
    if (wanted === "none" && (missed.length || before.length)) return false;
    if (wanted === "some" && !missed.length) return false;
    if (wanted === "before" && !before.length) return false;
    if (/^\d+$/.test(wanted) && !missed.includes(wanted)) return false;
    const chosen = $("class").value;
    return chosen === "" || classes(card).includes(Number(chosen));
  };
  const update = () => {
    visible = cards.filter(matches).sort(orders[$("sort").value]);
    cards.forEach((card) => { card.hidden = true; });
    visible.forEach((card, index) => { list.append(card); card.hidden = index >= shown; });
    const count = Math.min(shown, visible.length);
    $("count").textContent = count < visible.length
      ? `showing ${count} of ${visible.length}` : `${visible.length} of ${cards.length}`;
    $("more").hidden = count >= visible.length;
    $("empty").hidden = visible.length > 0;
  };
  for (const id of ["sort", "missed", "class"]) {
    $(id).addEventListener("change", () => { shown = page; update(); });
  }
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  $("more").addEventListener("click", () => {
    const first = visible[shown];
    shown += 2 * page;
    update();
    first?.querySelector("button").focus();
  });
  $("reset").addEventListener("click", () => {
    $("missed").value = "";
    $("class").value = "";
    update();
    $("missed").focus();
  });

  const dialog = $("large");
  let current = null;
  const open = (card) => {
    current = card;
    const body = $("large-body");
    body.replaceChildren(card.querySelector("template").content.cloneNode(true));
    $("large-title").textContent = body.firstElementChild.dataset.title;
    for (const image of body.querySelectorAll("img[data-from]")) {
      image.src = card.querySelector(`[data-pic="${image.dataset.from}"]`).src;
    }
    const curves = data.curves[number(card, "position")];
    for (const place of body.querySelectorAll("[data-chart]")) {
      place.append(chart(curves[place.dataset.chart], place.dataset.chart));
    }
    const index = visible.indexOf(card);
    $("previous").disabled = index <= 0;
    $("next").disabled = index >= visible.length - 1;
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  };
  const step = (by) => {
    const card = visible[visible.indexOf(current) + by];
    if (!card) return;
    if (visible.indexOf(card) >= shown) { shown = visible.indexOf(card) + 1; update(); }
    open(card);
  };
  list.addEventListener("click", (event) => {
    const button = event.target.closest("button.open");
    if (button) open(button.parentElement);
  });
  $("close").addEventListener("click", () => dialog.close());
  $("previous").addEventListener("click", () => step(-1));
  $("next").addEventListener("click", () => step(1));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "ArrowRight") step(1);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("close", () => current?.querySelector("button.open").focus());

  // ---------------------------------------------------------------------------------- curves of one row
  const make = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const ticks = (low, high) => {
    const raw = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw);
    const found = [];
    for (let k = Math.ceil(low / step); k * step <= high + 1e-9; k++) found.push(k * step);
    return found;
  };
  const nice = (value) => Number(value.toPrecision(2)).toString();
  function chart(series, kind) {
    const [width, height, left, right, top, bottom] = [440, 230, 44, 12, 10, 36];
    const all = series.flat().filter(Number.isFinite);
    let low = kind === "weights" ? 0 : Math.min(0, ...all);
    let high = Math.max(...all, kind === "weights" ? 0.1 : 0.1);
    if (kind === "weights") high = Math.min(1, high * 1.08); else { high += (high - low) * 0.05; }
    const last = data.steps[data.steps.length - 1] || 1;
    const x = (step) => left + (width - left - right) * step / last;
    const y = (value) => height - bottom - (height - bottom - top) * (value - low) / (high - low || 1);
    const label = data.domains.map((name, k) => `${name} ends at ${nice(series[k][series[k].length - 1])}`).join("; ");
    const svg = make("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${kind}: ${label}` });
    for (const value of ticks(low, high)) {
      svg.append(make("path", { class: "grid", d: `M${left} ${y(value)}H${width - right}` }));
      svg.append(make("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, nice(value)));
    }
    if (low < 0) svg.append(make("path", { class: "zero", d: `M${left} ${y(0)}H${width - right}` }));
    for (const step of new Set([0, Math.round(last / 2), last])) {
      svg.append(make("text", { x: x(step), y: height - bottom + 18, "text-anchor": "middle" }, step));
    }
    svg.append(make("text", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" }, "step"));
    series.forEach((values, k) => {
      const points = values.map((value, i) => `${x(data.steps[i]).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
      const line = make("polyline", { class: `line d${k % data.palette}${k >= data.palette ? " dashed" : ""}`, points });
      line.append(make("title", {}, data.domains[k]));
      svg.append(line);
    });
    return svg;
  }
  update();
})();
