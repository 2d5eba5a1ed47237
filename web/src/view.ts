// An answer on the page: its first line, its charts and tables, what it rests on, the command that gives it.

import type { Answer } from "./engine.ts";
import { control, element, write } from "./form.ts";
import type { State } from "./state.ts";
import type { Flag } from "./tabs.ts";

const part = (id: string) => document.getElementById(id)!;

/** Width that charts are drawn in: that of their column. */
export function chartWidth(): number {
  return Math.max(280, Math.floor(part("report").clientWidth));
}

/** The pieces of the report that are shown: as the core gave them, and where. */
const pieces: { html: string; place: HTMLElement }[] = [];

/** Where something scrolls it is reached by keys; told after the page is laid out, since asking before would lay it out twice. */
const scrolling = new ResizeObserver((seen) => {
  const scrolls = seen.map(({ target }) => target.scrollWidth > target.clientWidth);
  for (const [at, { target }] of seen.entries()) {
    if (scrolls[at]) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

/** Shows an answer, and gives the parts of the report that are new; fields of assumptions change the flags of the question. */
export function showAnswer(answer: Answer, state: State, flags: Map<string, Flag>): HTMLElement[] {
  if (!answer.ok) {
    showProblem(answer.problems);
    return [];
  }
  document.body.classList.remove("stale");
  part("problems").hidden = true;
  part("command").textContent = answer.command;
  const said = element("strong", answer.answer);
  said.classList.toggle("no", answer.no);
  part("answer").replaceChildren(said, ...answer.remarks.map((remark) => element("span", remark)));
  const changed: HTMLElement[] = [];
  keeping(() => {
    for (const [at, html] of answer.shown.entries()) {
      const known = pieces[at];
      if (known?.html === html) continue;
      const place = known?.place ?? part("report").appendChild(document.createElement("div"));
      fillIn(place, html);
      pieces[at] = { html, place };
      changed.push(place);
    }
    for (const { place } of pieces.splice(answer.shown.length)) place.remove();
    assume(answer.assumed, state, flags);
  });
  return changed;
}

/** Text of the core, which escapes all that is not its own. */
function fillIn(place: HTMLElement, html: string): void {
  for (const one of place.querySelectorAll(".scroll")) scrolling.unobserve(one);
  place.innerHTML = html;
  for (const one of place.querySelectorAll(".scroll")) scrolling.observe(one);
}

/** Shows what is wrong; the last answer stays, dimmed. */
export function showProblem(text: string): void {
  const place = part("problems");
  place.textContent = text.trim();
  place.hidden = false;
  document.body.classList.add("stale");
  part("answer").replaceChildren(element("span", "no answer to this question"));
}

/** The assumptions that are shown: cell by cell as the core gave them, and the flags that can change them. */
let assumed: { flags: string; cells: string[] } = { flags: "", cells: [] };

/** Shows the assumptions. Cells that say the same stay: a browser takes new fields for a new form, and looks through it. */
function assume(html: string, state: State, flags: Map<string, Flag>): void {
  const place = part("assumed");
  const told = document.createElement("template");
  told.innerHTML = html;
  const cells = (within: ParentNode) => [...within.querySelectorAll<HTMLElement>("th, td")];
  const now = { flags: [...flags.keys()].join(" "), cells: cells(told.content).map((cell) => cell.innerHTML) };
  const shown = cells(place);
  if (now.flags !== assumed.flags || now.cells.length !== shown.length) {
    fillIn(place, html);
    for (const cell of cells(place)) editable(cell, flags);
  } else {
    for (const [at, text] of now.cells.entries()) {
      if (text === assumed.cells[at]) continue;
      shown[at]!.innerHTML = text;
      editable(shown[at]!, flags);
    }
  }
  assumed = now;
  for (const field of place.querySelectorAll<HTMLInputElement | HTMLSelectElement>("[name]")) {
    write(field, state.fields.get(field.name) ?? "");
  }
}

/** Puts a field beside a flag that the question has. */
function editable(cell: HTMLElement, flags: Map<string, Flag>): void {
  const code = cell.querySelector("code");
  const flag = (code?.textContent ?? "").trim();
  const name = flag.slice(2);
  const known = flags.get(name);
  if (code === null || !flag.startsWith("--") || known === undefined) return;
  const field = control(name, known);
  const label = cell.closest("tr")?.cells[0]?.textContent ?? name;
  field.setAttribute("aria-label", `${label} (${flag})`);
  field.title = known.help;
  code.after(" ", field);
}

/** Replaces parts of the page; what has the focus and what is open stay so. */
function keeping(replace: () => void): void {
  const active = document.activeElement;
  const inside = active instanceof HTMLInputElement || active instanceof HTMLSelectElement;
  const name = inside && active.closest("#assumed") ? active.name : "";
  const at = active instanceof HTMLInputElement && name !== "" ? active.selectionStart : null;
  const key = active?.getAttribute("data-name") ?? "";
  const drawn = key === "" ? undefined : active?.closest("figure")?.id;
  const opened = new Map<string, boolean>();
  const named = (one: HTMLDetailsElement) => one.className + (one.closest("figure")?.id ?? "");
  const all = () => document.querySelectorAll<HTMLDetailsElement>("#report details, #assumed details");
  for (const one of all()) opened.set(named(one), one.open);
  replace();
  for (const one of all()) one.open = opened.get(named(one)) ?? one.open;
  if (name !== "") {
    const field = document.querySelector<HTMLInputElement>(`#assumed [name="${CSS.escape(name)}"]`);
    field?.focus({ preventScroll: true });
    if (at !== null) field?.setSelectionRange(at, at);
  }
  if (drawn !== undefined) refocus = { figure: drawn, key };
}

/** The mark of a chart that had the focus before the answer changed. */
export let refocus: { figure: string; key: string } | undefined;

export function refocused(): void {
  refocus = undefined;
}

/** Shows that something is computed, and for how long, once it takes longer than one notices. */
export function busy(since: number | undefined): void {
  part("busy").hidden = since === undefined;
  if (since !== undefined) part("busy-time").textContent = `${((performance.now() - since) / 1000).toFixed(0)} s`;
}
