"use strict";
// Parts of a page with data-live are replaced by what the server sends. The server escapes it. While the keyboard's focus is in such a part, or the
// reader has stopped it, it stays as it is.
for (const part of document.querySelectorAll("[data-live]")) {
  const source = new EventSource(part.dataset.live);
  const button = document.querySelector("button.pause");
  let stopped = false, newest = null;
  const show = () => {
    if (newest !== null && !stopped && !part.contains(document.activeElement)) {
      part.innerHTML = newest;
      newest = null;
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
