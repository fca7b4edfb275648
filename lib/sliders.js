// Three pictures that follow their sliders; lib/sliders.py puts this file into a notebook's output.
// No library: a page opened from disk and JupyterLab have none in common.

(() => {
  "use strict";

  const counted = (n) => [...Array(n).keys()];
  const WIDTH = 64; // d of RoPE's head
  const FARTHEST = 1024; // the last distance in the picture of buckets

  // ---- the formulas of lib/encodings -------------------------------------------------------------

  // θ_k = b^(−2k/d) in radians a token, k = 0 … d/2 − 1 (base.py).
  const frequencies = (base) => counted(WIDTH / 2).map((k) => base ** ((-2 * k) / WIDTH));

  // γ_k of NTK by parts, the share of pair k that stays as it was (scaling.py, β = 32 and 1).
  function kept({ base, L }) {
    const pair = (turns) => (WIDTH * Math.log(L / (2 * Math.PI * turns))) / (2 * Math.log(base));
    if (pair(1) < 0) return counted(WIDTH / 2).map(() => 0);
    const low = Math.max(Math.floor(pair(32)), 0);
    const high = Math.min(Math.ceil(pair(1)), WIDTH - 1);
    const width = low >= high ? 0.001 : high - low;
    return counted(WIDTH / 2).map((k) => 1 - Math.min(Math.max((k - low) / width, 0), 1));
  }

  // θ'_k by the name that `scaling` has in lib (scaling.py).
  const scaled = {
    none: ({ base }) => frequencies(base),
    linear: ({ base, s }) => frequencies(base).map((theta) => theta / s),
    ntk: ({ base, s }) => frequencies(base * s ** (WIDTH / (WIDTH - 2))),
    ntk_by_parts(settings) {
      const gamma = kept(settings);
      const mix = (theta, k) => ((1 - gamma[k]) * theta) / settings.s + gamma[k] * theta;
      return frequencies(settings.base).map(mix);
    },
  };

  // m_h of the authors' code, h = 0 … H − 1 (alibi.py).
  function slopes(H) {
    const p = 2 ** Math.floor(Math.log2(H));
    const exponents = counted(p).map((h) => (-8 * (h + 1)) / p);
    for (let h = 0; h < 2 * (H - p); h += 2) exponents.push((-8 * (h + 1)) / (2 * p));
    return exponents.map((exponent) => 2 ** exponent);
  }

  // The bucket of a distance δ ≥ 0 behind the query (t5.py).
  function bucket(delta, n, M) {
    const exact = n / 2;
    if (delta < exact) return delta;
    const far = (Math.log(delta / exact) / Math.log(M / exact)) * (n - exact);
    return Math.min(exact + Math.floor(far + 1e-9), n - 1);
  }

  // ---- the topics: what is computed, said and drawn ----------------------------------------------

  const whole = (x) => Math.round(x).toLocaleString("en-GB");

  const topics = {
    rope: {
      values(settings) {
        const { base, s, L } = settings;
        const plain = frequencies(base);
        const theta = scaled[settings.method](settings);
        // A pair that completes a turn within L has shown every angle. Another one meets new ones
        // where it goes farther in s·L tokens than it went in L.
        const incomplete = plain.map((x) => (2 * Math.PI) / x > L);
        const unseen = theta.map((x, k) => incomplete[k] && s * x > plain[k] * (1 + 1e-9));
        return { plain, theta, incomplete, unseen };
      },
      said({ s, L }, { theta, incomplete, unseen }) {
        const count = (flags) => `${flags.filter(Boolean).length} of ${flags.length}`;
        return [
          [`pairs that never complete a turn within L = ${whole(L)}`, count(incomplete)],
          [`pairs that meet new angles in s·L = ${whole(s * L)} tokens`, count(unseen)],
          ["one token turns the fastest pair by", `${theta[0].toFixed(2)} rad`],
          ["longest wavelength", `${whole((2 * Math.PI) / theta.at(-1))} tokens`],
        ];
      },
      axes: () => ({
        x: { from: 0, to: WIDTH / 2, ticks: [0, 8, 16, 24, 32], label: "pair k" },
        y: { from: 1, to: 1e9, log: true, ticks: counted(10).map((n) => 10 ** n),
             label: "wavelength 2π/θ in tokens" },
      }),
      draw(plot, { s, L }, { plain, theta, unseen }, colours) {
        plot.level(L, "L");
        if (s > 1) plot.level(s * L, "s·L");
        plain.forEach((x, k) => plot.dot(k, (2 * Math.PI) / x, 2.5, "#bbbbbb"));
        theta.forEach((x, k) =>
          plot.dot(k, (2 * Math.PI) / x, 4, unseen[k] ? colours.unseen : colours.seen));
        plot.note([["as trained", "#bbbbbb"], ["as read", colours.seen],
                   ["meets new angles", colours.unseen]]);
      },
    },

    alibi: {
      values: ({ H, delta }) => {
        const m = slopes(H);
        return { slopes: m, left: m.map((slope) => Math.exp(-slope * delta)) };
      },
      said({ H, delta }, { slopes: m, left }) {
        const of = (slope) =>
          `m = ${slope.toFixed(4)}, half-life ${(Math.LN2 / slope).toFixed(1)} tokens`;
        return [
          ["steepest head", of(Math.max(...m))],
          ["flattest head", of(Math.min(...m))],
          [`heads that keep a tenth of the weight at distance ${whole(delta)}`,
           `${left.filter((x) => x >= 0.1).length} of ${H}`],
        ];
      },
      axes: () => ({
        x: { from: 1, to: 4096, log: true, ticks: counted(7).map((n) => 4 ** n),
             label: "distance δ in tokens" },
        y: { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1], label: "weight left, exp(−m·δ)" },
      }),
      draw(plot, { delta }, { slopes: m, left }, colours) {
        plot.column(delta, "δ");
        const x = counted(97).map((i) => 2 ** (i / 8));
        m.forEach((slope, h) => {
          plot.line(x.map((at) => [at, Math.exp(-slope * at)]), colours.line);
          plot.dot(delta, left[h], 3.5, colours.line);
        });
      },
    },

    t5: {
      values({ n, M, L }) {
        const buckets = counted(FARTHEST + 1).map((delta) => bucket(delta, n, M));
        const within = new Set(buckets.slice(0, L));
        return { buckets, reached: buckets.map((b) => within.has(b)) };
      },
      said({ n, L }, { buckets, reached }) {
        const first = reached.indexOf(false);
        return [
          ["distances with a bucket of their own", `0 … ${n / 2 - 1}`],
          [`different biases within L = ${whole(L)}`, `${new Set(buckets.slice(0, L)).size} of ${n}`],
          ["the last bucket begins at distance", whole(buckets.indexOf(n - 1))],
          ["the first distance in a bucket that training never reaches",
           first < 0 ? "none does" : whole(first)],
        ];
      },
      axes: ({ n }) => ({
        x: { from: 1, to: 1024, log: true, ticks: counted(6).map((i) => 4 ** i),
             label: "distance δ in tokens" },
        y: { from: 0, to: n, ticks: [0, n / 2, n], label: "bucket" },
      }),
      draw(plot, { M, L }, { buckets, reached }, colours) {
        plot.column(L, "L");
        plot.column(M, "M");
        for (const [known, colour] of [[true, colours.seen], [false, colours.unseen]]) {
          let run = [];
          const end = () => { plot.line(run, colour); run = []; };
          for (let delta = 1; delta <= FARTHEST; delta++) {
            if (reached[delta] !== known) { end(); continue; }
            run.push([delta, buckets[delta]], [delta + 1, buckets[delta]]);
          }
          end();
        }
        plot.note([["reached in training", colours.seen], ["never reached", colours.unseen]]);
      },
    },
  };

  // ---- drawing -----------------------------------------------------------------------------------

  function svg(tag, attributes, text) {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // What a number becomes on an axis from `start` to `end` pixels.
  function scale({ from, to, log }, start, end) {
    const f = log ? Math.log : (x) => x;
    const share = (x) => (f(x) - f(from)) / (f(to) - f(from));
    return (x) => start + (end - start) * Math.min(Math.max(share(x), 0), 1);
  }

  const power = (x) => (x < 1e4 ? String(x) : `10${[...String(Math.round(Math.log10(x)))]
    .map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`);

  class Plot {
    constructor(width, axes) {
      const height = 320;
      const [left, right, top, bottom] = [56, width - 24, 28, height - 44];
      Object.assign(this, { left, right, top, bottom });
      this.x = scale(axes.x, left, right);
      this.y = scale(axes.y, bottom, top);
      this.root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
      for (const tick of axes.x.ticks) {
        this.text(this.x(tick), bottom + 16, power(tick), { "text-anchor": "middle" });
      }
      for (const tick of axes.y.ticks) {
        this.stroke(left, this.y(tick), right, this.y(tick), { stroke: "#eeeeee" });
        this.text(left - 6, this.y(tick) + 4, power(tick), { "text-anchor": "end" });
      }
      this.stroke(left, top, left, bottom, { stroke: "#333333" });
      this.stroke(left, bottom, right, bottom, { stroke: "#333333" });
      this.text((left + right) / 2, height - 8, axes.x.label, { "text-anchor": "middle" });
      const turned = `rotate(-90 12 ${(top + bottom) / 2})`;
      this.text(12, (top + bottom) / 2, axes.y.label, { "text-anchor": "middle", transform: turned });
    }

    text(x, y, words, attributes) {
      this.root.append(svg("text", { x, y, fill: "#333333", ...attributes }, words));
    }

    stroke(x1, y1, x2, y2, attributes) {
      this.root.append(svg("line", { x1, y1, x2, y2, ...attributes }));
    }

    level(y, name) {
      const at = this.y(y);
      this.stroke(this.left, at, this.right, at, { stroke: "#777777", "stroke-dasharray": "5 4" });
      this.text(this.right - 4, at - 4, name, { "text-anchor": "end" });
    }

    column(x, name) {
      const at = this.x(x);
      this.stroke(at, this.top, at, this.bottom, { stroke: "#777777", "stroke-dasharray": "5 4" });
      this.text(at + 4, this.bottom - 6, name, {});
    }

    dot(x, y, r, fill) {
      this.root.append(svg("circle", { cx: this.x(x), cy: this.y(y), r, fill }));
    }

    line(points, stroke) {
      const at = points.map(([x, y]) => `${this.x(x).toFixed(1)},${this.y(y).toFixed(1)}`);
      this.root.append(svg("polyline", { points: at.join(" "), fill: "none", stroke,
                                         "stroke-width": 1.5 }));
    }

    // What the colours mean, above the plot.
    note(entries) {
      let x = this.left + 6;
      for (const [words, fill] of entries) {
        this.root.append(svg("circle", { cx: x, cy: 14, r: 4, fill }));
        this.text(x + 8, 18, words, {});
        x += 28 + 6.5 * words.length;
      }
    }
  }

  // ---- controls ----------------------------------------------------------------------------------

  function element(tag, properties, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  // A slider or a choice; `read` gives the setting, `shown` what stands beside it.
  function control({ name, label, low, high, step, start, power: b, choices }) {
    if (choices) {
      const options = Object.entries(choices).map(([value, textContent]) =>
        element("option", { value, textContent, selected: value === start }));
      const input = element("select", { name }, ...options);
      return { name, input, node: element("label", {}, `${label} `, input), read: () => input.value };
    }
    const input = element("input", { type: "range", name, min: low, max: high, step });
    input.value = start;
    const read = () => (b ? b ** Number(input.value) : Number(input.value));
    const output = element("output", {});
    const node = element("label", {}, `${label} = `, output, input);
    return { name, input, node, read, show: () => { output.textContent = whole(read()); } };
  }

  // Turn what lib/sliders.py left at `root`, a table, into the picture with its sliders.
  function start(root, { kind, controls, colours }) {
    const topic = topics[kind];
    const parts = controls.map(control);
    const place = element("div", {});
    const table = root.querySelector("table");
    root.querySelector("p").remove();
    root.prepend(element("form", {}, ...parts.map(({ node }) => node)), place);

    function draw() {
      for (const { show } of parts) show?.();
      const settings = {};
      for (const { name, read } of parts) settings[name] = read();
      const values = topic.values(settings);
      const plot = new Plot(Math.max(300, Math.min(root.clientWidth || 640, 720)),
                            topic.axes(settings));
      topic.draw(plot, settings, values, colours);
      const rows = topic.said(settings, values);
      plot.root.setAttribute("aria-label", rows.map((row) => row.join(": ")).join("; "));
      place.replaceChildren(plot.root);
      table.replaceChildren(...rows.map(([words, value]) => element("tr", {},
        element("td", { textContent: words }), element("td", { textContent: value }))));
      root.dataset.settings = JSON.stringify(settings);
      root.dataset.values = JSON.stringify(values);
    }

    let drawn = root.clientWidth;
    for (const { input } of parts) input.addEventListener("input", draw);
    new ResizeObserver(() => {
      if (root.clientWidth !== drawn) { drawn = root.clientWidth; draw(); }
    }).observe(root);
    draw();
  }

  const data = CONFIGURATION;
  // A notebook that is open twice has the output twice.
  for (const root of document.querySelectorAll(`.sliders.${data.kind}:not([data-values])`)) {
    start(root, data);
  }
})();
