// The console's own script. Without it, every page can be read and every form sent; with it, parts are live and
// numbers have plots.
'use strict';

// --- Live parts -------------------------------------------------------------------------------------------------
// An element with data-live="/path" shows what the server sends there: HTML that it has escaped. The server closes a
// stream after some minutes, and the browser connects again by itself. After an answer other than 200, such as the 503 of
// a proxy while the console is started again, it gives up: then this script connects again.

// Sparklines survive the replacement of their part: only their place is new.
const sparks = new Map();

function replacePart(element, html) {
  const focused = element.contains(document.activeElement) ? focusable(element).indexOf(document.activeElement) : -1;
  const before = focused < 0 ? '' : document.activeElement.outerHTML.slice(0, 60);
  element.innerHTML = html;
  for (const place of element.querySelectorAll('[data-spark]')) {
    const known = sparks.get(place.dataset.spark);
    if (known) place.replaceWith(known.node);
  }
  // The reader's place by keyboard stays the same, if the same thing is there.
  const again = focusable(element)[focused];
  if (again && again.outerHTML.slice(0, 60) === before) again.focus({ preventScroll: true });
}

function focusable(element) {
  return [...element.querySelectorAll('a[href], button, summary, input')];
}

const CONNECT_AGAIN = 10000;

function watchPart(element) {
  const stale = document.createElement('p');
  stale.className = 'stale';
  stale.textContent = 'No news from the console: these numbers are old.';
  let source = null;
  let again = 0;
  let since = 0;
  let isOver = false;

  function close() {
    clearTimeout(again);
    source?.close();
    source = null;
    since = 0;
  }

  function open() {
    // A browser has few connections to one host: a page that nobody sees keeps none.
    if (source || isOver || document.hidden) return;
    const own = new EventSource(element.dataset.live);
    source = own;
    own.addEventListener('part', (event) => {
      stale.remove();
      element.removeAttribute('data-stale');
      replacePart(element, event.data);
      const part = element.querySelector('[data-phase]');
      // Buttons below a job are those of its phase.
      if (part && part.dataset.phase !== element.dataset.phaseOfPage) {
        isOver = true;
        close();
        location.reload();
      }
    });
    own.addEventListener('open', () => { since = 0; });
    own.addEventListener('error', () => {
      if (own !== source) return;
      // A stream that ends on purpose is there again within seconds.
      since ||= Date.now();
      setTimeout(() => {
        if (!since || Date.now() - since < 9000) return;
        element.setAttribute('data-stale', '');
        element.before(stale);
      }, 10000);
      if (own.readyState !== EventSource.CLOSED) return;
      source = null;
      // Not all at once, after a restart that many have seen.
      again = setTimeout(open, CONNECT_AGAIN * (1 + Math.random() / 2));
    });
  }

  open();
  document.addEventListener('visibilitychange', () => { if (document.hidden) close(); else open(); });
}

for (const element of document.querySelectorAll('[data-live]')) watchPart(element);

// --- Plots ------------------------------------------------------------------------------------------------------
// A number has a sparkline (data-spark="name"), and a figure a plot (data-plot="name name"), both of /api/v1/metrics.

const METRICS = '/api/v1/metrics';
const METRICS_EVERY = 10000;
const plots = [];

function color(name) {
  // A computed colour, as light-dark() is no colour for a canvas.
  const probe = document.createElement('span');
  probe.className = name;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const palette = () => ['plot-first', 'plot-second', 'plot-third', 'plot-fourth'].map(color);

function values(history, names) {
  return history.series.filter((series) => names.includes(series.name));
}

// Several consumers have a series of the same name: a sparkline is of the slowest flow, of the most that waits, or of
// all dead letters, as the number above it.
function combined(series, name) {
  const sum = (...known) => known.reduce((all, one) => all + one, 0);
  const pick = name === 'dead_letters' ? sum : name.endsWith('_per_second') ? Math.min : Math.max;
  return series[0].values.map((_, place) => {
    const known = series.map((one) => one.values[place]).filter((value) => value !== null && value !== undefined);
    return known.length ? pick(...known) : null;
  });
}

function unitFormat(unit) {
  const short = (value) => (Math.abs(value) >= 1000
    ? new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 }).format(value)
    : String(Math.round(value * 100) / 100));
  if (unit === 'seconds') {
    return (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${Math.round(value * 10) / 10} s`);
  }
  if (unit === 'bytes') return (value) => `${short(value / 1048576)} MiB`;
  if (unit === 'per_second') return (value) => `${short(value)}/s`;
  return short;
}

// Hours and minutes in UTC, as all times of the pages.
const clock = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 16);
const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
const DAY = 86400;

function sparkline(node, times, column) {
  const [stroke] = palette();
  return new uPlot({
    width: Math.max(node.clientWidth, 60),
    height: 44,
    cursor: { show: false },
    legend: { show: false },
    axes: [{ show: false }, { show: false }],
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
    series: [{}, { stroke, width: 2, fill: stroke.replace('rgb(', 'rgba(').replace(')', ', 0.12)'), points: { show: false } }],
    padding: [2, 0, 0, 0],
  }, [times, column], node);
}

function chart(node, times, series) {
  const colors = palette();
  const [ink] = ['plot-ink'].map(color);
  const [line] = ['plot-line'].map(color);
  const format = unitFormat(node.dataset.unit);
  // Hours mean nothing in a plot of several days.
  const label = times[times.length - 1] - times[0] > 1.5 * DAY ? day : clock;
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const styles = series.map((_, place) => ({ stroke: colors[place % colors.length], width: 2, points: { show: false } }));
  return new uPlot({
    width: Math.max(node.clientWidth, 200),
    height: 180,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), 'Etc/UTC'),
    axes: [{ ...axis, values: (_, ticks) => ticks.map(label) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : format(tick))) }],
    scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
    series: [{}, ...styles],
  }, [times, ...series.map((one) => one.values)], node);
}

function draw(history) {
  for (const plot of plots.splice(0)) plot.destroy();
  const times = history.at_ms.map((ms) => ms / 1000);
  if (times.length < 2) return;
  for (const place of document.querySelectorAll('[data-spark]')) {
    const series = values(history, [place.dataset.spark]);
    if (!series.length) continue;
    sparks.set(place.dataset.spark, { node: place });
    plots.push(sparkline(place, times, combined(series, place.dataset.spark)));
  }
  for (const place of document.querySelectorAll('[data-plot]')) {
    const series = values(history, place.dataset.plot.split(' '));
    if (series.length) plots.push(chart(place, times, series));
  }
}

let latest = null;

async function update() {
  if (document.hidden) return;
  const hours = new URLSearchParams(location.search).get('hours') ?? '1';
  const answer = await fetch(`${METRICS}?hours=${encodeURIComponent(hours)}`);
  if (!answer.ok) return;
  latest = await answer.json();
  draw(latest);
}

if (document.querySelector('[data-spark], [data-plot]')) {
  // Without an answer, the tables below the plots are what there is.
  const again = () => update().catch(() => {});
  again();
  setInterval(again, METRICS_EVERY);
  document.addEventListener('visibilitychange', again);
  let waiting = 0;
  const redraw = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (latest) draw(latest); }, 150);
  };
  addEventListener('resize', redraw);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
}

// --- Times ------------------------------------------------------------------------------------------------------
// Times are in UTC; the reader's own time is shown when they are pointed at.
document.addEventListener('pointerover', (event) => {
  const time = event.target.closest?.('time[datetime]');
  if (time && !time.title) time.title = new Date(time.dateTime).toLocaleString();
});
