// Shows what /readyz says, and puts the address of this page into the examples.
"use strict";

for (const place of document.querySelectorAll(".origin")) {
  place.textContent = location.origin;
}

function show(ready) {
  let wrong = 0;
  for (const item of document.querySelectorAll("[data-check]")) {
    const result = ready.checks[item.dataset.check];
    item.hidden = result === undefined;
    if (item.hidden) continue;
    const state = item.querySelector(".state");
    const ok = result === "ok";
    if (!ok) wrong += 1;
    state.textContent = ok ? "ok" : "not now";
    state.className = `state ${ok ? "ok" : "wrong"}`;
    item.title = ok ? "" : result;
  }
  document.getElementById("summary").textContent =
    wrong === 0 ? "Every service and store answers." : `${wrong} of the parts below do not answer now.`;
}

async function ask() {
  try {
    const answer = await fetch("/readyz");
    show(await answer.json());
  } catch {
    document.getElementById("summary").textContent = "The gateway does not answer; is `gesso up` still running?";
  }
}

ask();
setInterval(ask, 5000);
