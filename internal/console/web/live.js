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

// A list that has found few of its messages so far goes on by itself, until it has a page of them or the reader stops it. What comes is
// put behind what is there.
const lookOn = async (found, next) => {
  const link = next.querySelector("a"), says = document.createElement("span"), stop = document.createElement("button");
  let stopped = false;
  says.setAttribute("role", "status");
  says.textContent = "Looking on ";
  stop.type = "button";
  stop.textContent = "Stop looking";
  stop.onclick = () => { stopped = true; };
  link.hidden = true;
  next.append(says, stop);
  while (!stopped && found.dataset.more) {
    const answer = await fetch(found.dataset.more, { redirect: "error" }).catch(() => null);
    const page = answer && answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    const part = page && page.getElementById("found");
    if (!part) {
      break;
    }
    const body = found.querySelector("tbody"), rows = part.querySelectorAll("tbody > tr");
    if (body) {
      body.append(...rows);
    } else if (rows.length > 0 || !part.dataset.more) {
      found.replaceChildren(...part.childNodes);
    }
    const on = page.querySelector("#next > a");
    found.dataset.more = part.dataset.more && found.querySelectorAll("tbody > tr").length < 100 ? part.dataset.more : "";
    link.hidden = !on;
    if (on) {
      link.href = on.getAttribute("href");
      link.textContent = found.querySelector("tbody") ? "More" : on.textContent;
    }
  }
  link.hidden = link.hidden && !found.dataset.more;
  says.textContent = "";
  stop.remove();
};
for (const found of document.querySelectorAll("#found[data-more]")) {
  lookOn(found, document.getElementById("next"));
}
