"use strict";
// Parts of a page with data-live are replaced by what the server sends. The server escapes it. While the keyboard's focus is in such a part, or the
// reader has stopped it, it stays as it is.
for (const part of document.querySelectorAll("[data-live]")) {
  const source = new EventSource(part.dataset.live);
  const button = document.querySelector("button.pause");
  let stopped = false, newest = null;
  const show = () => {
    if (newest !== null && !stopped && !part.contains(document.activeElement)) {
      const open = new Set([...part.querySelectorAll("li:has(> details[open]) > a")].map((a) => a.href));
      part.innerHTML = newest;
      newest = null;
      for (const details of part.querySelectorAll("li:has(> a) > details")) { // what the reader has opened stays open
        details.open = open.has(details.parentElement.querySelector("a").href);
      }
    }
  };
  source.onmessage = (e) => { newest = e.data; show(); };
  part.addEventListener("focusout", () => setTimeout(show, 0));
  if (button) {
    button.hidden = false;
    button.onclick = () => {
      stopped = !stopped;
      button.textContent = stopped ? "Move on" : "Stop moving";
      show();
    };
  }
}
