// The fields of the page: those in its HTML, and one for every other flag of the question.

import type { State } from "./state.ts";
import { flagsOf, tabOf, type Catalogue, type Flag } from "./tabs.ts";

type Field = HTMLInputElement | HTMLSelectElement;

const isField = (one: unknown): one is Field => one instanceof HTMLInputElement || one instanceof HTMLSelectElement;

/** Tabs whose questions are about no model. */
const WITHOUT_MODEL = ["formats", "einsum"];

/** Every named field of the page, whether shown or not. */
function fields(): Field[] {
  return [...document.querySelectorAll("#form [name], #own [name]")].filter(isField);
}

function read(field: Field): string {
  if (field instanceof HTMLInputElement && field.type === "checkbox") return field.checked ? "on" : "";
  return field.value.trim();
}

/** Puts a value into a field; a select that has no such option gets one. */
export function write(field: Field, value: string): void {
  if (field instanceof HTMLInputElement && field.type === "checkbox") {
    field.checked = value !== "";
    return;
  }
  if (field === document.activeElement && field.value.trim() === value) return;
  const shown = field.closest("[hidden]") === null;
  if (shown && field instanceof HTMLSelectElement && ![...field.options].some((option) => option.value === value)) {
    field.add(new Option(value, value));
  }
  field.value = value;
}

export function set(state: State, name: string, value: string): void {
  if (value === "") state.fields.delete(name);
  else state.fields.set(name, value);
}

/** Shows the state in all fields, and which of them the question uses. */
export function fill(state: State, catalogue: Catalogue | undefined): void {
  const tab = tabOf(state);
  for (const part of document.querySelectorAll<HTMLElement>("[data-for]")) {
    part.hidden = !part.dataset["for"]?.split(" ").includes(tab.id);
  }
  for (const link of document.querySelectorAll<HTMLElement>("[data-tab]")) {
    if (link.dataset["tab"] === tab.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.getElementById("config")!.hidden = WITHOUT_MODEL.includes(tab.id);
  if (catalogue !== undefined) more(state, catalogue);
  const flags = catalogue && flagsOf(state, catalogue);
  for (const field of fields()) {
    write(field, state.fields.get(field.name) ?? "");
    if (flags === undefined || field.closest("#form") === null) continue;
    const named = field.name === "model" ? !WITHOUT_MODEL.includes(tab.id) : flags.has(field.name);
    field.closest("label")?.classList.toggle("idle", !named);
    field.title = named ? (flags.get(field.name)?.help ?? "") : "not used by this question";
  }
}

/** Fields for the flags of the question that the page has no field for. */
function more(state: State, catalogue: Catalogue): void {
  const place = document.getElementById("more-flags")!;
  const shown = fields().filter((field) => !place.contains(field) && field.closest("[hidden]") === null);
  const own = new Set(shown.map((field) => field.name));
  const hidden = new Set([...own, "set", "timeline", "table"]);
  const flags = [...flagsOf(state, catalogue)].filter(([name]) => !hidden.has(name));
  const key = flags.map(([name]) => name).join(" ");
  if (place.dataset["flags"] === key) return;
  place.dataset["flags"] = key;
  place.replaceChildren();
  let group = "";
  for (const [name, flag] of flags) {
    if (flag.group !== group) {
      group = flag.group;
      place.append(element("h3", group));
    }
    place.append(labelled(name, flag));
  }
  document.getElementById("more")!.hidden = flags.length === 0;
}

function labelled(name: string, flag: Flag): HTMLElement {
  const label = document.createElement("label");
  label.append(element("span", name), control(name, flag), element("small", flag.help));
  return label;
}

/** A field for a flag: of the form of the page's own field where it has one. */
export function control(name: string, flag: Flag | undefined): Field {
  const known = fields().find((field) => field.name === name && !field.closest("#more-flags, [hidden]"));
  const field = (known?.cloneNode(true) as Field | undefined) ?? document.createElement("input");
  field.removeAttribute("id");
  if (flag?.value === null) (field as HTMLInputElement).type = "checkbox";
  else if (known === undefined) (field as HTMLInputElement).placeholder = flag?.value ?? "";
  field.name = name;
  return field;
}

export function element<Name extends keyof HTMLElementTagNameMap>(name: Name, text: string): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
}

/** Calls back with the name and value of every field that is changed, wherever it is on the page. */
export function onChange(changed: (name: string, value: string, done: boolean) => void): void {
  const heard = (event: Event) => {
    const field = event.target;
    if (isField(field) && field.name !== "" && field.dataset["key"] === undefined) {
      changed(field.name, read(field), event.type === "change");
    }
  };
  document.addEventListener("input", heard);
  document.addEventListener("change", heard);
}
