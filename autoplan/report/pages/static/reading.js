for (const line of document.querySelectorAll(".readout")) {
  line.hidden = false;
  const picture = line.previousElementSibling;
  const read = (event) => {
    const named = event.target.closest("[aria-label]");
    if (named && named !== picture && picture.contains(named) && named.tagName.toLowerCase() !== "svg")
      line.textContent = named.getAttribute("aria-label");
  };
  picture.addEventListener("pointerover", read);
  picture.addEventListener("focusin", read);
}
