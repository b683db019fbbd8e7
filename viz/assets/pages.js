"use strict";
/* Shows the page that the fragment of the address names. Sends a "pageshown" event to other scripts. */
(() => {
  const root = document.documentElement;
  const links = [...document.querySelectorAll("#pages a")];
  const reportTitle = document.title;

  /** Returns the element that the fragment names up to its first slash, or the first page. */
  const findTarget = () => document.getElementById(location.hash.slice(1).split("/")[0]) ?? document.querySelector(".page");
  let current = null;

  function showPage() {
    const target = findTarget();
    const page = target.closest(".page") ?? document.querySelector(".page");
    for (const other of document.querySelectorAll(".page")) other.classList.toggle("current", other === page);
    for (const link of links) {
      if (link.hash !== `#${page.id}`) link.removeAttribute("aria-current");
      else {
        link.setAttribute("aria-current", "page");
        link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 3;
      }
    }
    document.title = `${page.querySelector("h2").textContent} · ${reportTitle}`;
    dispatchEvent(new Event("pageshown"));
    const isNew = page !== current;
    current = page;
    return [page, target, isNew];
  }

  /** Shows the images whose data one block has for all places; the blocks come after this script. */
  addEventListener("DOMContentLoaded", () => {
    for (const image of document.querySelectorAll("img[data-image]")) {
      image.src = JSON.parse(document.getElementById(image.dataset.image).textContent);
    }
  });

  root.classList.add("paged");
  showPage();
  addEventListener("hashchange", () => {
    const [page, target, isNew] = showPage();
    if (target !== page) {
      target.scrollIntoView();
      if (target.tabIndex === -1) target.focus({ preventScroll: true }); // a skip link's target
    } else if (isNew) {
      page.querySelector("h2").focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  });
})();
