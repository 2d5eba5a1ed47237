// The marks of charts: bits that flip, layouts that are taken, segments that open their formulas.

import { refocus, refocused } from "./view.ts";

export interface Actions {
  flip: (format: string, bit: number) => void;
  take: (layout: Map<string, string>) => void;
}

/** Makes the marks of charts reachable: one at a time by the tab key, the others by arrows. */
export function markCharts(places: HTMLElement[], actions: Actions): void {
  for (const figure of places.flatMap((place) => [...place.querySelectorAll("figure")])) {
    const marks = [...figure.querySelectorAll<SVGElement>("svg [data-name]")];
    const act = action(figure.id, actions);
    if (marks.length === 0) continue;
    const svg = marks[0]!.closest("svg")!;
    svg.setAttribute("role", "group");
    for (const [at, mark] of marks.entries()) {
      mark.setAttribute("tabindex", at === 0 ? "0" : "-1");
      mark.setAttribute("role", act === undefined ? "img" : "button");
      mark.setAttribute("aria-label", mark.querySelector("title")?.textContent ?? mark.dataset["name"] ?? "");
    }
    const reach = (to: SVGElement) => {
      for (const mark of marks) mark.setAttribute("tabindex", mark === to ? "0" : "-1");
      to.focus();
    };
    svg.addEventListener("keydown", (event) => {
      const at = marks.indexOf(event.target as SVGElement);
      if (at < 0) return;
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step !== undefined) reach(marks[(at + step + marks.length) % marks.length]!);
      else if (event.key === "Enter" || event.key === " ") act?.(marks[at]!.dataset["name"]!);
      else return;
      event.preventDefault();
    });
    svg.addEventListener("click", (event) => {
      const mark = (event.target as Element).closest<SVGElement>("[data-name]");
      if (mark !== null) act?.(mark.dataset["name"]!);
    });
    if (refocus?.figure === figure.id) {
      const again = marks.find((mark) => mark.dataset["name"] === refocus?.key);
      refocused();
      if (again !== undefined) reach(again);
    }
  }
}

function action(figure: string, actions: Actions): ((name: string) => void) | undefined {
  if (figure.endsWith("-bits")) {
    return (name) => {
      const [format = "", bit = ""] = name.split(":");
      actions.flip(format, Number(bit));
    };
  }
  if (figure.endsWith("-layouts")) {
    // `tp=2 pp=4`
    return (name) => actions.take(new Map(name.split(" ").map((part) => part.split("=") as [string, string])));
  }
  const find = () => document.querySelector<HTMLDetailsElement>("#report details.derived");
  if (find() === null) return undefined;
  return () => {
    const formulas = find();
    if (formulas === null) return;
    formulas.open = true;
    formulas.scrollIntoView({ block: "nearest" });
    formulas.querySelector("summary")?.focus();
  };
}
