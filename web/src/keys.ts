// Keys that work wherever nothing is typed.

export function onKeys(): void {
  const help = document.getElementById("help") as HTMLDialogElement;
  document.getElementById("help-open")!.addEventListener("click", () => help.showModal());
  document.querySelector(".skip")!.addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("answer")!.focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input, select, textarea, dialog") !== null;
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") document.querySelector<HTMLInputElement>("#form [name='model']")?.select();
    else if (event.key === "?") help.showModal();
    else if (/^[1-8]$/.test(event.key)) {
      const link = document.querySelectorAll<HTMLElement>("[data-tab]")[Number(event.key) - 1];
      link?.click();
      link?.focus();
    } else return;
    event.preventDefault();
  });
}
