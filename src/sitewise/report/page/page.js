"use strict";
// Sorting by a click on a heading; without scripts the tables are just tables.
const valueOf = (row, column) => {
  const cell = row.cells[column];
  const number = cell.dataset.value === undefined ? NaN : Number(cell.dataset.value);
  return Number.isNaN(number) ? cell.textContent.trim() : number;
};
const compare = (a, b) => {
  const bothNumbers = typeof a === "number" && typeof b === "number";
  if (bothNumbers) return a - b;
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return a.localeCompare(b, undefined, { numeric: true });
};
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => compare(valueOf(a, column), valueOf(b, column)));
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}
// Paper cannot be unfolded: everything is open while printing.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((part) => part.setAttribute("open", ""));
});
addEventListener("afterprint", () => closed.forEach((part) => part.removeAttribute("open")));
