/* What htmx cannot do: instants that count on, plots, the pause of a live list, parts that wait
   while somebody fills in a form. Without this file every page still shows and acts. */
(() => {
  "use strict";
  const body = document.documentElement;
  let skew = Infinity; // this browser's clock minus the daemon's, ms

  // Instants that count on ------------------------------------------------------------------
  const units = [["d", 86400], ["h", 3600], ["min", 60]];
  function span(ms) {
    const seconds = Math.max(Math.floor(ms / 1000), 0);
    for (let i = 0; i < units.length; i++) {
      const [unit, size] = units[i];
      if (seconds < size) continue;
      const [small, part] = units[i + 1] || ["s", 1];
      return `${Math.floor(seconds / size)} ${unit} ${Math.floor((seconds % size) / part)} ${small}`;
    }
    return `${seconds} s`;
  }
  function tick() {
    const marked = document.querySelectorAll("time[data-at]");
    for (const mark of marked) skew = Math.min(skew, Date.now() - Number(mark.dataset.now));
    for (const mark of marked) {
      const ms = Date.now() - skew - Number(mark.dataset.at);
      const text = ms >= 0 ? `${span(ms)} ago` : `in ${span(-ms)}`;
      if (mark.textContent !== text) mark.textContent = text;
    }
  }

  // Parts that refresh themselves -------------------------------------------------------------
  function busy(part) {
    if (part.closest("[data-paused]")) return true;
    if (part.querySelector("details.act[open]")) return true;
    const focus = document.activeElement;
    return part.contains(focus) && /^(INPUT|SELECT|TEXTAREA)$/.test(focus.tagName);
  }
  document.addEventListener("htmx:before:request", (event) => {
    const part = event.detail.ctx.sourceElement;
    const live = part.matches("[data-hx-trigger*='felt:']");
    if (live && (document.hidden || busy(part))) event.preventDefault();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-pause]");
    if (!button) return;
    const part = document.getElementById(button.dataset.pause);
    const paused = part.toggleAttribute("data-paused");
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Resume" : "Pause";
  });

  // The stream --------------------------------------------------------------------------------
  function mark(text) {
    const place = document.getElementById("live");
    if (place) place.textContent = text;
  }
  document.addEventListener("htmx:sse:after:connection", (event) => {
    if (event.detail.connection.status === 200) mark("live");
  });
  // The stream's last word: who may listen no more is led to the login, as any page leads him.
  document.addEventListener("end", (event) => {
    if (event.target.id === "live" && /"code":"(UNAUTHENTICATED|FORBIDDEN)"/.test(event.detail.data)) {
      location.reload();
    }
  });
  document.addEventListener("htmx:sse:error", () => mark("reconnecting"));
  document.addEventListener("htmx:sse:close", () => mark("not live"));

  // Plots ---------------------------------------------------------------------------------------
  const drawn = new Map();
  function colour(name) {
    return getComputedStyle(body).getPropertyValue(name).trim();
  }
  // The hour that ends with the newest sample, however few there are yet.
  function hour(plot) {
    const sampled = plot.data[0];
    const end = sampled.length ? sampled[sampled.length - 1] : Date.now() / 1000;
    return [end - 3600, end];
  }
  const clock = new Intl.DateTimeFormat("en-GB",
    { hour: "2-digit", minute: "2-digit", timeZone: "UTC" });
  const at = (seconds) => clock.format(seconds * 1000);
  function series(place) {
    const strokes = ["--work", "--good", "--bad", "--wait"];
    return place.dataset.series.split(",").map((pair, i) => {
      const [key, label] = pair.split(":");
      return { key, label: label || key, stroke: colour(strokes[i % strokes.length]), width: 1.5 };
    });
  }
  // Where nobody points at the plot, the legend tells the newest sample.
  function newest(plot) {
    const last = plot.data[0].length - 1;
    if (plot.cursor.idx == null && last >= 0) plot.setLegend({ idx: last });
  }
  function draw(place, sampled) {
    const lines = series(place);
    const values = [sampled.at_ms.map((ms) => ms / 1000)];
    for (const line of lines) values.push(sampled[line.key]);
    const known = drawn.get(place);
    if (known) {
      known.setData(values);
      newest(known);
      return;
    }
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const unit = place.dataset.unit || "";
    for (const line of lines) line.value = (_, v) => (v == null ? "–" : `${+v.toFixed(2)}${unit}`);
    const legend = { stroke: colour("--ink") };
    const plot = new window.uPlot({
      width: Math.max(place.clientWidth, 200),
      height: 190,
      tzDate: (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      series: [{ label: "UTC", value: (_, v) => (v == null ? "–" : at(v)) }, ...lines],
      axes: [{ ...axis, values: (_, all) => all.map(at) }, { ...axis, size: 70, values: (_, all) => all.map((v) => `${+v.toFixed(3)}${unit}`) }],
      scales: {
        x: { range: hour },
        y: { range: (_, low, high) => [0, Math.max(high || 0, 0.1) * 1.1] },
      },
      cursor: { drag: { x: false, y: false } },
      legend,
      hooks: { setCursor: [newest] },
    }, values, place);
    drawn.set(place, plot);
    newest(plot);
  }
  async function plots() {
    const places = [...document.querySelectorAll("[data-plot]")];
    if (!places.length || !window.uPlot || document.hidden) return;
    for (const url of new Set(places.map((place) => place.dataset.plot))) {
      try {
        const answer = await fetch(url, { headers: { Accept: "application/json" } });
        if (!answer.ok) continue;
        const sampled = await answer.json();
        for (const place of places) if (place.dataset.plot === url) draw(place, sampled);
      } catch {
        // The next round asks again.
      }
    }
  }
  function redraw() {
    for (const [place, plot] of drawn) {
      plot.destroy();
      drawn.delete(place);
    }
    plots();
  }

  document.addEventListener("DOMContentLoaded", () => {
    tick();
    setInterval(tick, 1000);
    plots();
    setInterval(plots, 10000);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("resize", () => {
      for (const [place, plot] of drawn) {
        plot.setSize({ width: Math.max(place.clientWidth, 200), height: 190 });
      }
    });
  });
})();
