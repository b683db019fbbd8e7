"use strict";
/* One page at a time, by the address' fragment. Tells other scripts by a "turned" event. */
(() => {
  const root = document.documentElement;
  const links = [...document.querySelectorAll("#pages a")];
  const titleOfFile = document.title;

  /** What the fragment names, or the overview. */
  const wanted = () => document.getElementById(location.hash.slice(1)) ?? document.getElementById("overview");

  function turn() {
    const target = wanted();
    const page = target.closest(".page") ?? document.getElementById("overview");
    for (const other of document.querySelectorAll(".page")) other.classList.toggle("current", other === page);
    for (const link of links) {
      if (link.hash !== `#${page.id}`) link.removeAttribute("aria-current");
      else {
        link.setAttribute("aria-current", "page");
        link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 3;
      }
    }
    document.title = `${page.querySelector("h2").textContent} · ${titleOfFile}`;
    dispatchEvent(new Event("turned"));
    return [page, target];
  }

  root.classList.add("paged");
  turn();
  addEventListener("hashchange", () => {
    const [page, target] = turn();
    page.querySelector("h2").focus({ preventScroll: true });
    if (target === page) scrollTo(0, 0);
    else target.scrollIntoView();
  });
})();
