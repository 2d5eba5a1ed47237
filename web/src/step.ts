// The drawing of a step: what is live where the cursor is, and a part of it drawn again.

import type { Engine } from "./engine.ts";
import { element } from "./form.ts";

/** Columns that an arrow key moves the cursor by. */
const STRIDE = 6;

/** Makes the drawing of the step, where there is one in these places, answer to pointer and keys. */
export function followStep(places: HTMLElement[], engine: Engine): void {
  const figures = places.map((place) => place.querySelector<HTMLElement>("figure[id$='-timeline']"));
  const figure = figures.find((one) => one !== null);
  const frame = figure?.querySelector<HTMLElement>(".scroll");
  if (!figure || !frame) return;
  let svg = frame.querySelector("svg")!;
  const width = svg.viewBox.baseVal.width;
  // Columns of the whole drawing that are shown; all of them where both are 0.
  let [from, to] = [0, 0];
  let cursor = width / 2;
  let anchor: number | undefined;
  let asked = 0;
  const readout = element("p", "Point at the drawing, or use the arrow keys, to read a moment; drag to see a part.");
  readout.className = "readout quiet";
  const back = element("button", "whole step");
  back.type = "button";
  back.hidden = true;
  frame.after(readout, back);

  const line = (name: string, attributes: Record<string, string>) => {
    svg.querySelector(`.${attributes["class"]}`)?.remove();
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    svg.append(made);
  };
  const height = () => svg.viewBox.baseVal.height;
  const point = async (x: number) => {
    cursor = Math.min(Math.max(x, 0), width);
    line("line", { class: "cursor", x1: `${cursor}`, x2: `${cursor}`, y1: "20", y2: `${height() - 30}` });
    if (anchor !== undefined) {
      const [left, right] = [Math.min(anchor, cursor), Math.max(anchor, cursor)];
      line("rect", { class: "range", x: `${left}`, width: `${right - left}`, y: "20", height: `${height() - 50}` });
    }
    const number = ++asked;
    const said = await engine.call("moment", cursor, width, from, to).catch(() => "");
    if (number === asked && said !== "") readout.textContent = said;
  };
  const draw = async (left: number, right: number) => {
    const drawn = await engine.call("redraw", "timeline", width, left, right).catch(() => "");
    if (drawn === "") return;
    [from, to] = [left, right];
    const focused = document.activeElement === svg;
    frame.innerHTML = drawn;
    attach();
    if (focused) svg.focus();
    back.hidden = to <= from;
  };
  const select = (until: number) => {
    const [left, right] = [Math.min(anchor ?? until, until), Math.max(anchor ?? until, until)];
    anchor = undefined;
    svg.querySelector(".range")?.remove();
    if (right - left < 4) return;
    // What is shown may be a part: its columns in those of the whole. The plot is inset by 76 and 16 columns.
    const inset = (x: number) => Math.min(Math.max((x - 76) / (width - 92), 0), 1);
    const whole = (x: number) => (to > from ? from + inset(x) * (to - from) : x);
    void draw(whole(left), whole(right));
  };
  const attach = () => {
    svg = frame.querySelector("svg")!;
    svg.classList.add("step");
    svg.setAttribute("tabindex", "0");
    const place = (event: PointerEvent) => {
      const box = svg.getBoundingClientRect();
      return ((event.clientX - box.left) / box.width) * width;
    };
    svg.addEventListener("pointerdown", (event) => {
      anchor = place(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => void point(place(event)));
    svg.addEventListener("pointerup", (event) => select(place(event)));
    svg.addEventListener("pointercancel", () => (anchor = undefined));
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: STRIDE, ArrowLeft: -STRIDE }[event.key];
      if (step !== undefined) {
        anchor = event.shiftKey ? (anchor ?? cursor) : undefined;
        if (anchor === undefined) svg.querySelector(".range")?.remove();
        void point(cursor + step);
      } else if (event.key === "Enter" && anchor !== undefined) select(cursor);
      else if (event.key === "Escape") void draw(0, 0);
      else return;
      event.preventDefault();
    });
  };
  back.addEventListener("click", () => void draw(0, 0));
  attach();
}
