// Two worlds of one noisy step: the secret is masked (a bell around 0), or it is in the text, where
// the search finds it with probability 1 - gamma (a mixture of that bell and one around 1).
const bells = (() => {
  const density = (x, mean, sigma) => Math.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * Math.sqrt(2 * Math.PI));
  const worlds = (x, gamma, sigma) => {
    const masked = density(x, 0, sigma);
    return {masked, there: (1 - gamma) * masked + gamma * density(x, 1, sigma)};
  };
  // Of 100 games with a fair coin, how many the best attacker wins: 50 + 50 gamma TV of the two bells.
  const right = (gamma, sigma) => {
    let sum = 0;
    for (let x = -8 * sigma; x < 0.5; x += sigma / 200) sum += (density(x, 0, sigma) - density(x, 1, sigma)) * sigma / 200;
    return 50 + 50 * gamma * Math.max(0, sum);
  };
  return {worlds, right};
})();

if (typeof document !== "undefined") addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("toy-bells"), input = name => place.querySelector(`input[name=${name}]`);
  const draw = () => {
    const gamma = input("gamma").value / 100, sigma = input("sigma").value / 10;
    place.querySelector("output[name=gamma]").textContent = gamma;
    place.querySelector("output[name=sigma]").textContent = sigma;
    const wide = Math.max(280, place.querySelector(".toy-drawn").clientWidth), h = 190, low = -3 * sigma, high = 1 + 3 * sigma;
    const X = x => (x - low) / (high - low) * wide, top = bells.worlds(0, 0, sigma).masked * 1.08, Y = y => h - 22 - y / top * (h - 30);
    const xs = Array.from({length: 121}, (_, k) => low + (high - low) * k / 120), at = xs.map(x => [x, bells.worlds(x, gamma, sigma)]);
    const line = key => at.map(([x, y]) => `${X(x).toFixed(1)},${Y(y[key]).toFixed(1)}`).join(" ");
    const over = at.filter(([, y]) => y.there > y.masked);
    const area = over.length > 1 ? `<polygon class="apart" points="${over.map(([x, y]) => `${X(x)},${Y(y.there)}`).join(" ")} ${over.reverse().map(([x, y]) => `${X(x)},${Y(y.masked)}`).join(" ")}"/>` : "";
    place.querySelector(".toy-drawn").innerHTML = `<svg viewBox="0 0 ${wide} ${h}" role="img" aria-label="Two curves; the more they cover each other, the less can be seen." font-size="13">
      <g class="look-crt">${area}<polyline class="bell" points="${line("there")}"/></g><g class="look-dpsgd"><polyline class="bell" points="${line("masked")}"/></g>
      <line class="axis" x1="0" x2="${wide}" y1="${h - 22}" y2="${h - 22}"/><text x="${X(0)}" y="${h - 6}" text-anchor="middle">masked</text><text x="${X(1)}" y="${h - 6}" text-anchor="middle">there</text></svg>`;
    const found = bells.right(gamma, sigma).toFixed(1), bare = bells.right(1, sigma).toFixed(1);
    place.querySelector(".toy-said").textContent = `A search that misses ${Math.round(100 * gamma)} % leaves the best attacker ${found} right guesses of 100 (a coin: 50). Without the search it would be ${bare}.`;
  };
  place.addEventListener("input", draw);
  new ResizeObserver(draw).observe(place.querySelector(".toy-drawn"));  // the page may find its width late
  draw();
});
