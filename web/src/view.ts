// An answer on the page: its first line, its charts and tables, what it rests on, the command that gives it.

import type { Answer } from "./engine.ts";
import { control, element } from "./form.ts";
import type { State } from "./state.ts";
import type { Flag } from "./tabs.ts";

const part = (id: string) => document.getElementById(id)!;

/** Width that charts are drawn in: that of their column. */
export function chartWidth(): number {
  return Math.max(280, Math.floor(part("report").clientWidth));
}

/** Shows an answer; fields of assumptions change the flags of the question. */
export function showAnswer(answer: Answer, state: State, flags: Map<string, Flag>): void {
  document.body.classList.remove("stale");
  if (!answer.ok) {
    showProblem(answer.problems);
    return;
  }
  part("problems").hidden = true;
  part("command").textContent = answer.command;
  const template = document.createElement("template");
  // Text of the core, which escapes all that is not its own.
  template.innerHTML = answer.html;
  const { content } = template;
  headline(content, answer.no);
  const assumed = content.querySelector("details.assumed");
  if (assumed !== null) editable(assumed, state, flags);
  keeping(() => {
    part("assumed").replaceChildren(...(assumed === null ? [] : [assumed]));
    part("report").replaceChildren(content);
  });
  // What scrolls is reached by keys.
  for (const one of document.querySelectorAll<HTMLElement>("main .scroll")) if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
}

/** Shows what is wrong; the last answer stays, dimmed. */
export function showProblem(text: string): void {
  const place = part("problems");
  place.textContent = text.trim();
  place.hidden = false;
  document.body.classList.add("stale");
  part("answer").replaceChildren(element("span", "no answer to this question"));
}

/** Moves the first line, and what qualifies it, to the live region. */
function headline(content: DocumentFragment, no: boolean): void {
  const title = content.querySelector("h2.answer");
  const answer = element("strong", title?.textContent ?? "");
  answer.classList.toggle("no", no);
  const said: HTMLElement[] = [answer];
  let next = title?.nextElementSibling;
  while (next instanceof HTMLParagraphElement) {
    const after = next.nextElementSibling;
    // The command has its own place.
    if (next.querySelector("code") === null) said.push(element("span", next.textContent ?? ""));
    next.remove();
    next = after;
  }
  title?.remove();
  part("answer").replaceChildren(...said);
}

/** Puts a field beside every assumption that has a flag. */
function editable(assumed: Element, state: State, flags: Map<string, Flag>): void {
  for (const code of assumed.querySelectorAll("code")) {
    const flag = (code.textContent ?? "").trim();
    const known = flags.get(flag.slice(2));
    if (!flag.startsWith("--") || known === undefined) continue;
    const name = flag.slice(2);
    const field = control(name, known);
    const label = code.closest("tr")?.cells[0]?.textContent ?? name;
    field.setAttribute("aria-label", `${label} (${flag})`);
    field.title = known.help;
    const value = state.fields.get(name) ?? "";
    if (field instanceof HTMLInputElement && field.type === "checkbox") field.checked = value !== "";
    else field.value = value;
    code.after(" ", field);
  }
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
