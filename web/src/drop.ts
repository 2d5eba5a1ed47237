// Files: dropped anywhere, chosen, or pasted. What cannot be a config is refused before it is read.

/** Largest file that is read; the core has the same limit. */
const MOST = 10 << 20;

/** Calls back with the bytes and the name of a file, or with what is wrong with it. */
export function onFile(taken: (bytes: Uint8Array, name: string) => void, refused: (message: string) => void): void {
  const take = async (file: File | null | undefined) => {
    if (!file) return refused("that is no file: drop a config.json");
    if (file.size > MOST) {
      const size = (file.size / 2 ** 20).toFixed(0);
      return refused(`${file.name} has ${size} MiB: a config.json has some KiB, and more than 10 MiB are not read`);
    }
    try {
      taken(new Uint8Array(await file.arrayBuffer()), file.name);
    } catch (error) {
      refused(`${file.name} cannot be read: ${String(error)}`);
    }
  };
  const dropping = (on: boolean) => document.body.classList.toggle("dropping", on);
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    dropping(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) dropping(false);
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    dropping(false);
    const text = event.dataTransfer?.getData("text/plain");
    const file = event.dataTransfer?.files[0];
    if (file === undefined && text) taken(new TextEncoder().encode(text), "text");
    else void take(file);
  });
  const chosen = document.getElementById("file") as HTMLInputElement;
  chosen.addEventListener("change", () => {
    if (chosen.files?.length) void take(chosen.files[0]);
    // The same file can be chosen again once it has changed.
    chosen.value = "";
  });
  const pasted = document.getElementById("paste") as HTMLTextAreaElement;
  pasted.addEventListener("input", () => {
    const text = pasted.value.trim();
    if (text.length > MOST) refused("that is more than 10 MiB: a config.json has some KiB");
    else if (text !== "") taken(new TextEncoder().encode(text), "what was pasted");
  });
}
