// The accountant in the page: the privacy loss of DP-SGD (Poisson sampling, Gaussian noise), put on
// a lattice so that it can only grow ("connect the dots", Doroshenko et al. 2022), composed by one
// Fourier transform. What it says is an upper bound; tests/book/test_panel.py compares it with
// crtlib.accounting, which says the same in fewer digits of excess.
const panel = (() => {
  const ERFC = [-1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3,
    -9.46595344482036e-4, 3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6,
    1.303655835580e-6, 1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10,
    -2.27365122e-10, 9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13,
    3.81e-16, 7.106e-15, -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17];
  // The upper tail of the normal law (Numerical Recipes, 6.2.2), good in its relative error.
  const tail = x => {
    if (x < 0) return 1 - tail(-x);
    const z = x / Math.SQRT2, t = 2 / (2 + z), y = 4 * t - 2;
    let d = 0, e = 0;
    for (let k = ERFC.length - 1; k > 0; k--) [d, e] = [y * d - e + ERFC[k], d];
    return t / 2 * Math.exp(-z * z + 0.5 * (ERFC[0] + y * d) - e);
  };
  const between = (a, b) => a > 0 ? tail(a) - tail(b) : b < 0 ? tail(-b) - tail(-a) : 1 - tail(-a) - tail(b);

  // P against Q for one step. `where` is the x at which the loss log(dP/dQ) is l; it grows with x.
  const pair = (q, sigma, direction) => {
    const s2 = sigma * sigma, right = r => s2 * Math.log((r - 1 + q) / q) + 0.5;
    const mixture = sign => (a, b) =>
      (1 - q) * between(a / sigma, b / sigma) + q * between((a - sign) / sigma, (b - sign) / sigma);
    const zero = (a, b) => between(a / sigma, b / sigma);
    const up = x => Math.log1p(q * Math.expm1(Math.min((x - 0.5) / s2, 700)));
    if (direction === "forward")
      return {p: mixture(1), q: zero, loss: up, where: l => Math.exp(l) > 1 - q ? right(Math.exp(l)) : -Infinity};
    if (direction === "backward")
      return {p: zero, q: mixture(-1), loss: x => -up(-x), where: l => Math.exp(-l) > 1 - q ? -right(Math.exp(-l)) : Infinity};
    const c = Math.exp(-0.5 / s2);
    return {p: mixture(1), q: mixture(-1), loss: x => up(x) - up(-x), where: l => {
      const r = Math.exp(l), b = (1 - q) * (r - 1), root = Math.sqrt(b * b + 4 * q * q * c * c * r);
      return s2 * Math.log(b > 0 ? (b + root) / (2 * q * c) : 2 * q * c * r / (root - b));
    }};
  };

  // P-masses at the losses (first + k) * width, and the mass at infinity.
  const lattice = (law, sigma, width) => {
    const low = -10 * sigma, high = 1 + 10 * sigma;
    const first = Math.floor(law.loss(low) / width), last = Math.max(Math.ceil(law.loss(high) / width), first + 1);
    const mass = new Float64Array(last - first + 1), gap = -Math.expm1(-width);
    let a = -Infinity;
    for (let k = first; k < last; k++) {
      const b = k + 1 === last ? high : Math.min(Math.max(law.where((k + 1) * width), a, low), high);
      const p = law.p(a, b), above = Math.min(p, Math.max(0, (p - Math.exp(k * width) * law.q(a, b)) / gap));
      mass[k - first] += p - above;
      mass[k - first + 1] += above;
      a = b;
    }
    return {first, mass, infinity: law.p(high, Infinity) + 1e-15};
  };

  const transform = (re, im, inverse) => {  // of a power of two, in place
    const n = re.length;
    for (let i = 1, j = 0; i < n; i++) {
      let bit = n >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) { [re[i], re[j]] = [re[j], re[i]]; [im[i], im[j]] = [im[j], im[i]]; }
    }
    for (let size = 2; size <= n; size *= 2) {
      const half = size / 2, turn = (inverse ? 2 : -2) * Math.PI / size;
      for (let k = 0; k < half; k++) {
        const c = Math.cos(turn * k), s = Math.sin(turn * k);
        for (let i = k; i < n; i += size) {
          const j = i + half, x = re[j] * c - im[j] * s, y = re[j] * s + im[j] * c;
          re[j] = re[i] - x; im[j] = im[i] - y; re[i] += x; im[i] += y;
        }
      }
    }
  };

  // Losses between which all but 1e-13 of the sum of `steps` lies (Chernoff), of a coarse lattice.
  const span = ({first, mass}, width, steps) => [1, -1].map(sign => {
    let best = Infinity;
    for (let lambda = 1e-3; lambda < 2e3; lambda *= 1.25) {
      let sum = 0;
      for (let k = 0; k < mass.length; k++) sum += mass[k] * Math.exp(sign * lambda * (first + k) * width);
      if (sum < Infinity) best = Math.min(best, (steps * Math.log(sum) + 30) / lambda);
    }
    return best;
  });

  const composed = (q, sigma, steps, direction, size) => {
    const law = pair(q, sigma, direction), one = law.loss(1 + 10 * sigma) - law.loss(-10 * sigma);
    const coarse = lattice(law, sigma, one / 500), [up, down] = span(coarse, one / 500, steps);
    const reach = Math.max(up + down, one) * 1.05, width = reach / size;
    const {first, mass, infinity} = lattice(law, sigma, width);
    const re = new Float64Array(size), im = new Float64Array(size);
    mass.forEach((p, k) => { re[k % size] += p; });
    transform(re, im, false);
    for (let k = 0; k < size; k++) {
      const r = Math.pow(Math.hypot(re[k], im[k]), steps), angle = steps * Math.atan2(im[k], re[k]);
      re[k] = r * Math.cos(angle); im[k] = r * Math.sin(angle);
    }
    transform(re, im, true);
    // Index j of the ring is the loss (steps * first + j) * width, j from the least that can be.
    const least = Math.floor(-down / width) - 2, losses = new Float64Array(size), out = new Float64Array(size);
    for (let k = 0; k < size; k++) {
      losses[k] = (least + k) * width;
      const j = (least + k - steps * first) % size;
      out[k] = Math.max(0, re[j < 0 ? j + size : j] / size);
    }
    // delta(epsilon) = sum over losses above epsilon of out * (1 - exp(epsilon - loss)): of two sums
    // from the top, which are compensated (Kahan), so that their roundings stay below 1e-13.
    const above = new Float64Array(size + 1), tilted = new Float64Array(size + 1);
    for (let k = size - 1, [a, b, c, d] = [0, 0, 0, 0]; k >= 0; k--) {
      const x = out[k] - c, y = out[k] * Math.exp(-losses[k]) - d;
      above[k] = a + x; tilted[k] = b + y;
      c = above[k] - a - x; d = tilted[k] - b - y;
      a = above[k]; b = tilted[k];
    }
    const lost = Math.min(1, steps * infinity + 4e-13 + size * 2e-16 + steps * 1e-15);
    return epsilon => {  // delta
      const k = Math.min(size, Math.max(0, Math.floor(epsilon / width) - least + 1));
      return Math.min(1, lost + Math.max(0, above[k] - Math.exp(epsilon) * tilted[k]));
    };
  };

  // The curve of a training: epsilon of a delta, as an upper bound.
  const profile = ({q, sigma, steps, relation}, size = 1 << 15) => {
    const ways = relation === "replace" ? ["replace"] : ["forward", "backward"];
    const curves = ways.map(way => composed(q, sigma, steps, way, size));
    return delta => {
      if (delta >= 1) return 0;
      let low = 0, high = 200;
      if (curves.every(curve => curve(0) <= delta)) return 0;
      if (curves.some(curve => curve(high) > delta)) return Infinity;
      for (let k = 0; k < 50; k++) {
        const middle = (low + high) / 2;
        if (curves.every(curve => curve(middle) <= delta)) high = middle; else low = middle;
      }
      return high;
    };
  };

  // Theorem 8.3 of CRT: what redaction that misses a share gamma leaves to be learned.
  const confidential = (curve, {gamma, delta, delta2}) => {
    if (delta2 && delta2 >= delta) return Infinity;
    if (gamma === 0 || delta - delta2 >= gamma) return 0;
    return Math.log1p(gamma * Math.expm1(curve((delta - delta2) / gamma)));
  };

  // The least noise, up to a thousandth, that keeps epsilon at delta.
  const noise = ({epsilon, delta, q, steps, relation}) => {
    let low = 0.3, high = 0.6;
    const above = sigma => profile({q, sigma, steps, relation}, 1 << 12)(delta) > epsilon;
    while (above(high) && high < 1e6) [low, high] = [high, 2 * high];
    while (high / low > 1.001) { const middle = Math.sqrt(low * high); if (above(middle)) low = middle; else high = middle; }
    return high;
  };
  // An upper bound as it is printed: rounded up, to a thousandth.
  const printed = x => {
    if (x === Infinity) return "∞";
    if (x === 0) return "0";
    return (Math.ceil(x * 1000 * (1 - 1e-15)) / 1000).toFixed(3);
  };
  return {profile, confidential, noise, tail, printed};
})();


if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("panel"), form = place.querySelector("form"), find = name => place.querySelector("." + name);
  const nice = (digits, first) => v => +(digits[v % digits.length] * 10 ** (first + Math.floor(v / digits.length))).toPrecision(3);
  const read = {  // of a slider's position
    gamma: v => v <= 0 ? 0 : 10 ** ((v - 150) / 50), epsilon: nice([1, 1.5, 2, 3, 4, 6, 8], -1), delta: nice([1, 2, 4, 8], -8),
    delta2: v => v <= 0 ? 0 : nice([1, 2, 4, 8], -8)(v), q: nice([1, 2, 3, 5, 7], -3), steps: nice([1, 1.2, 1.5, 2, 3, 5, 7], 1),
  };
  const values = () => {
    const out = {relation: form.elements.relation.value};
    for (const [name, of] of Object.entries(read)) out[name] = +of(+form.elements[name].value).toPrecision(3);
    return out;
  };
  // A chart as SVG, as wide as its place so that its letters have the page's size: lines of (x, y), a
  // position, and a level; x from 0 to 1.
  const chart = ({lines, at, low, high, level, ticks, band, log}, wide) => {
    const full = document.fullscreenElement, letter = parseFloat(getComputedStyle(place).fontSize) * (full ? 1 : 0.8), w = Math.max(wide, 16 * letter);
    const tall = full ? 0.29 * innerHeight : 0.6 * w, right = Math.max(12, letter);
    const [h, left, foot] = [Math.max(tall, 9 * letter), 2.8 * letter, 1.9 * letter], height = y => log ? Math.log(y) : y;
    const X = x => left + (w - left - right) * x, Y = y => h - foot - (h - foot - 12) * (height(y) - height(low)) / (height(high) - height(low));
    const parts = ticks.map(y => `<line class="grid" x1="${left}" x2="${w - right}" y1="${Y(y)}" y2="${Y(y)}"/><text x="${left - 6}" y="${Y(y) + letter / 3}" text-anchor="end">${y}</text>`);
    if (band) parts.push(`<rect class="band" x="${left}" width="${w - left - right}" y="${Y(band[1])}" height="${Y(band[0]) - Y(band[1])}"/>`);
    for (const x of [0, 0.2, 0.4, 0.6, 0.8, 1]) parts.push(`<text x="${X(x)}" y="${h - letter / 2}" text-anchor="middle">${+(x * (at.most || 1)).toFixed(2)}</text>`);
    if (level !== undefined) parts.push(`<line class="level" x1="${left}" x2="${w - right}" y1="${Y(level)}" y2="${Y(level)}"/>`);
    lines.forEach(({points, name, dots, look}) => {
      const kept = points.filter(([, y]) => isFinite(y));
      parts.push(`<polyline class="look-${look}" points="${kept.map(([x, y]) => `${X(x)},${Y(Math.min(high, Math.max(low, y)))}`).join(" ")}"><title>${name}</title></polyline>`);
      if (dots) parts.push(...kept.map(([x, y]) => `<circle class="look-${look}" cx="${X(x)}" cy="${Y(y)}" r="4"/>`));
    });
    if (at.x <= 1) parts.push(`<line class="at" x1="${X(at.x)}" x2="${X(at.x)}" y1="12" y2="${h - foot}"/>`);
    return `<svg viewBox="0 0 ${w} ${h}" font-size="${letter}" aria-hidden="true">${parts.join("")}</svg>`;
  };
  const interpolated = (points, x) => {
    const k = points.findIndex(([at]) => at >= x);
    if (k < 0) return null;
    const [[x0, y0], [x1, y1]] = [points[Math.max(0, k - 1)], points[k]];
    return {value: x1 === x0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0), exact: x === x1 || x === x0, from: x0, to: x1};
  };
  const runs = (gamma, wide) => PANEL.measures.map(({title, lines, low, high, ticks, band, log}) => {
    const read = lines.map(line => ({...line, read: interpolated(line.points, gamma)}));
    const first = read[0].read, most = PANEL.most;
    const how = !first ? `no run was recorded above γ = ${most}` : first.exact ? `recorded at γ = ${gamma}` : `interpolated between the recorded γ = ${first.from} and ${first.to}: no run has this γ`;
    const items = read.map(line => `<li class="look-${line.look}"><b>${line.read ? line.read.value.toFixed(2) : "–"}</b> ${line.name}</li>`).join("");
    return `<div><h3>${title}</h3>${chart({lines: lines.map(l => ({...l, dots: true, points: l.points.map(([x, y]) => [x / most, y])})), at: {x: gamma / most, most}, low, high, ticks, band, log}, wide)}<ul>${items}</ul><p><em>${how}</em></p></div>`;
  }).join("");
  let known = "", curve, sigma, waiting;
  const renew = () => {
    const v = values(), key = JSON.stringify({...v, gamma: 0, delta2: 0}), start = performance.now();
    for (const name in read) {
      form.querySelector(`output[name=${name}-is]`).textContent = v[name];
      form.elements[name].setAttribute("aria-valuetext", v[name]);
    }
    if (key !== known) {
      sigma = panel.noise(v);
      curve = panel.profile({...v, sigma});
      known = key;
    }
    const epsilon = panel.confidential(curve, v), spent = performance.now() - start;
    const grid = Array.from({length: 41}, (_, k) => k / 40).map(gamma => [gamma, panel.confidential(curve, {...v, gamma})]);
    const top = Math.max(v.epsilon, ...grid.map(([, y]) => isFinite(y) ? y : 0)) * 1.05;
    const ticks = [0, 1, 2, 3, 4].map(k => +(top * k / 4.2).toPrecision(2));
    find("panel-epsilon").textContent = "ε = " + panel.printed(epsilon);
    find("panel-note").textContent = `σ = ${sigma.toFixed(3)}; an upper bound, computed here in ${spent < 1 ? "under 1" : spent.toFixed(0)} ms`;
    find("panel-curve").innerHTML = chart({lines: [{points: grid, name: "ε by γ", look: "crt"}], at: {x: v.gamma}, low: 0, high: top, ticks, level: v.epsilon}, find("panel-curve").clientWidth);
    find("panel-said").textContent = v.delta2 && v.delta2 >= v.delta
      ? `δ₂ = ${v.delta2} alone spends δ = ${v.delta}: nothing is promised at this δ.`
      : `With a search that misses ${+(100 * v.gamma).toPrecision(3)} % of the secrets, DP-SGD of ε′ = ${v.epsilon} becomes confidentiality of ε = ${panel.printed(epsilon)} at δ = ${v.delta}.`;
    const row = find("panel-runs"), across = getComputedStyle(row).gridTemplateColumns.split(" ");
    row.innerHTML = runs(v.gamma, parseFloat(across[0]));
  };
  form.addEventListener("input", event => {
    clearTimeout(waiting);
    if (["gamma", "delta2"].includes(event.target.name)) renew(); else waiting = setTimeout(renew, 120);
  });
  form.addEventListener("submit", event => event.preventDefault());
  place.querySelector(".panel-made").textContent = PANEL.made;
  const button = place.querySelector(".panel-full");
  button.hidden = !document.fullscreenEnabled;
  button.addEventListener("click", () => document.fullscreenElement ? document.exitFullscreen() : place.requestFullscreen());
  document.addEventListener("fullscreenchange", () => {
    button.textContent = document.fullscreenElement ? "Leave full screen" : "Full screen";
    renew();
  });
  addEventListener("resize", renew);
  renew();
});
