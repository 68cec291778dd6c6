const choice = document.getElementById("choice");
const details = Array.from(document.querySelectorAll(".detail"));
function show(number) {
  const id = "details-" + number;
  if (!details.some((detail) => detail.id === id)) return;
  for (const detail of details) detail.hidden = detail.id !== id;
  choice.value = number;
  for (const row of document.querySelectorAll("tr[id]"))
    row.classList.toggle("chosen", row.id === "plan-" + number);
  for (const point of document.querySelectorAll("a.point"))
    point.classList.toggle("chosen", point.getAttribute("href") === "#plan-" + number);
}
function follow() {
  const named = /^#(?:plan|details)-(\d+)$/.exec(location.hash);
  if (named) show(named[1]);
}
document.getElementById("choosing").hidden = false;
choice.addEventListener("change", () => { location.hash = "details-" + choice.value; });
addEventListener("hashchange", follow);
follow();
