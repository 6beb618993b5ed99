// What happens once, when the page is there.

function watchTheme() {
  const button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const show = () => {
    const isDark = chosen === null ? prefersDark.matches : chosen === "dark";
    document.documentElement.style.colorScheme = chosen ?? "";
    button.textContent = isDark ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark ? "Use light colours" : "Use dark colours");
    return isDark;
  };
  button.removeAttribute("aria-pressed");
  button.hidden = false;
  button.addEventListener("click", () => {
    chosen = show() ? "light" : "dark";
    show();
  });
  prefersDark.addEventListener("change", show);
  show();
}

watchTheme();
new RowList(JSON.parse(document.getElementById("data").textContent)).start();
