// The keys of the config that is asked about, each in a row that changes it.

import type { Warning } from "./engine.ts";
import { element } from "./form.ts";
import type { State } from "./state.ts";

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** Keys and values of a config, those of objects by their path; nothing where it is no config. */
function keys(text: string): [string, string][] {
  let all: Json;
  try {
    all = JSON.parse(text) as Json;
  } catch {
    return [];
  }
  const list: [string, string][] = [];
  const visit = (path: string, value: Json) => {
    if (typeof value === "object" && value !== null && !Array.isArray(value) && path.split(".").length < 4) {
      for (const [key, inner] of Object.entries(value)) visit(path === "" ? key : `${path}.${key}`, inner);
    } else if (path !== "") {
      list.push([path, typeof value === "string" ? value : JSON.stringify(value)]);
    }
  };
  visit("", all);
  return list;
}

let shown = "";

/** Shows the rows of a config. */
export function showConfig(state: State, name: string, text: string): void {
  const place = document.getElementById("config")!;
  const identity = `${name} ${text}`;
  if (identity !== shown) {
    shown = identity;
    const rows = keys(text);
    place.replaceChildren();
    if (rows.length === 0) return;
    const details = document.createElement("details");
    details.open = state.file.length > 0;
    const table = document.createElement("table");
    for (const [key, value] of rows) {
      const row = table.insertRow();
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = key;
      const input = document.createElement("input");
      Object.assign(input.dataset, { key, value });
      input.setAttribute("aria-label", key);
      row.append(head);
      row.insertCell().append(input);
    }
    const scroll = element("div", "");
    scroll.className = "scroll";
    scroll.append(table);
    details.append(element("summary", `${name}: ${rows.length} keys`), scroll);
    place.append(details);
  }
  for (const input of place.querySelectorAll("input")) {
    const { key = "", value = "" } = input.dataset;
    const now = state.sets.get(key) ?? value;
    if (input !== document.activeElement) input.value = now;
    input.classList.toggle("changed", state.sets.has(key));
    input.title = state.sets.has(key) ? `${value} in the config` : "";
  }
}

/** Marks the keys that an answer warns of. */
export function markConfig(warnings: Warning[]): void {
  const warned = new Map<string, string>();
  for (const one of warnings) {
    const named = one.pointer?.replace(/^\//, "").replaceAll("/", ".") || /`([^`]+)`/.exec(one.message)?.[1];
    if (named !== undefined) warned.set(named, one.message);
  }
  for (const row of document.querySelectorAll<HTMLTableRowElement>("#config tr")) {
    const message = warned.get(row.cells[0]?.textContent ?? "");
    row.classList.toggle("unknown", message !== undefined);
    if (message !== undefined) row.title = message;
    else row.removeAttribute("title");
  }
}

/** Calls back with every key that is changed; with no value where it is what the config says. */
export function onConfig(changed: (key: string, value: string | undefined) => void): void {
  document.getElementById("config")!.addEventListener("input", ({ target }) => {
    if (!(target instanceof HTMLInputElement) || target.dataset["key"] === undefined) return;
    const value = target.value.trim();
    changed(target.dataset["key"], value === target.dataset["value"] ? undefined : value);
  });
}
