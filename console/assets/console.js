// The console's own script. Without it, every page can be read; with it, parts are live.
'use strict';

// An element with data-live="/path" shows what the server sends there: HTML that it has escaped.
// The server closes a stream after some minutes, and the browser connects again by itself.
for (const element of document.querySelectorAll('[data-live]')) {
  const source = new EventSource(element.dataset.live);
  source.addEventListener('part', (event) => {
    // A part that a reader works in stays as it is.
    if (element.contains(document.activeElement)) return;
    element.innerHTML = event.data;
    element.removeAttribute('data-stale');
  });
  source.addEventListener('error', () => element.setAttribute('data-stale', ''));
}
