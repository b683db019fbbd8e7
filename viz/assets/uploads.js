"use strict";
/* Uploads of the live page in the order in which they were chosen: Dash's own handler gives them in the order in which they
   finish loading, so the first image could become the second. */
(() => {
  const read = (file) => new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });

  async function upload(event) {
    const files = [...((event.dataTransfer ?? event.target).files ?? [])];
    if (!event.target.closest?.("#upload") || !files.length) return;
    event.preventDefault();
    event.stopPropagation();
    const contents = await Promise.all(files.map(read));
    window.dash_clientside.set_props("upload", { contents, filename: files.map((file) => file.name) });
  }

  for (const kind of ["change", "drop"]) document.addEventListener(kind, upload, true); // before React's listeners
})();
