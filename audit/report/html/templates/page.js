"use strict";
const rows = (table) => [...table.tBodies[0].rows];
function sortBy(table, index, down) {
  const key = (row) => {
    const cell = row.cells[index];
    return cell.dataset.v === undefined ? null : Number(cell.dataset.v);
  };
  const text = (row) => row.cells[index].textContent;
  const order = rows(table).sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) {
      if (x !== y) return x === null ? 1 : -1;
      return (down ? -1 : 1) * text(a).localeCompare(text(b));
    }
    return down ? y - x : x - y;
  });
  table.tBodies[0].append(...order);
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    if (i === index) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}
const tables = [...document.querySelectorAll("table.standings")];
const chooser = document.querySelector("#sort");
tables.forEach((table) => {
  [...table.tHead.rows[0].cells].forEach((cell, index) => {
    cell.querySelector("button")?.addEventListener("click", () =>
      sortBy(table, index, cell.getAttribute("aria-sort") === "ascending"));
  });
});
if (chooser) {
  const names = new Set(tables.flatMap((table) =>
    [...table.tHead.rows[0].cells].map((cell) => cell.dataset.name).filter(Boolean)));
  names.forEach((name) => chooser.add(new Option(name)));
  chooser.addEventListener("change", () => tables.forEach((table) => {
    const index = [...table.tHead.rows[0].cells].findIndex(
      (cell) => cell.dataset.name === chooser.value);
    if (index >= 0) sortBy(table, index, true);
  }));
}
const search = document.querySelector("#filter");
const choices = [...document.querySelectorAll("select.choose")];
function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  tables.forEach((table) => {
    const place = table.closest("section");
    const title = place.querySelector("h2").textContent.toLowerCase();
    let any = false;
    rows(table).forEach((row) => {
      const said = `${title} ${row.textContent.toLowerCase()}`;
      const chosen = choices.every((choice) => !choice.value
        || (place.dataset[choice.dataset.of] ?? row.dataset[choice.dataset.of]) === choice.value);
      row.hidden = !chosen || !words.every((word) => said.includes(word));
      any = any || !row.hidden;
    });
    place.hidden = !any;
    const entry = document.querySelector(`nav a[href="#${CSS.escape(place.id)}"]`);
    if (entry) entry.parentElement.hidden = !any;
  });
}
search?.addEventListener("input", filter);
choices.forEach((choice) => choice.addEventListener("change", filter));
