for (const text of document.querySelectorAll("pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  const name = "copy " + text.getAttribute("aria-label");
  button.textContent = name;
  button.addEventListener("click", async () => {
    const range = document.createRange();
    range.selectNodeContents(text);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    let done = true;
    try { await navigator.clipboard.writeText(text.textContent); }
    catch { done = document.execCommand("copy"); }
    button.textContent = done ? "copied" : "selected: copy it with the keyboard";
    setTimeout(() => { button.textContent = name; }, 2000);
  });
  text.before(button);
}
