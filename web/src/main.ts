// The page: its state, the question it stands for, and the answer.

import { markConfig, onConfig, showConfig } from "./config.ts";
import { onFile } from "./drop.ts";
import { core, Engine, FILE, Stale, type Answer } from "./engine.ts";
import { fill, onChange, set } from "./form.ts";
import { onKeys } from "./keys.ts";
import { markCharts } from "./marks.ts";
import { first, fromFragment, pack, toFragment, type State } from "./state.ts";
import { followStep } from "./step.ts";
import { asksFile, flagsOf, wordsOf, type Catalogue } from "./tabs.ts";
import { busy, chartWidth, showAnswer, showProblem } from "./view.ts";

const part = (id: string) => document.getElementById(id)!;

let state: State = first();
/** The file of the state as text of the address. */
let packed = "";
let catalogue: Catalogue | undefined;
let scheduled = false;
/** What is being typed into: all of it is one step of the back button. */
let typing = "";

const engine = new Engine(core());

/** Asks the question of the page, once for all changes of one event: waiting for a frame would be most of the time it takes. */
function ask(): void {
  if (scheduled || catalogue === undefined) return;
  scheduled = true;
  performance.mark("asked");
  queueMicrotask(() => {
    scheduled = false;
    void answer();
  });
}

async function answer(): Promise<void> {
  if (catalogue === undefined) return;
  const asked = state;
  const since = performance.now();
  const ticking = setInterval(() => busy(since), 250);
  try {
    const file = asksFile(asked) ? asked.file : new Uint8Array();
    const question = { words: wordsOf(asked, catalogue), file, width: chartWidth() };
    show(await engine.ask(question), asked, catalogue);
    performance.measure("answer", "asked");
  } catch (error) {
    if (!(error instanceof Stale)) showProblem(error instanceof Error ? error.message : String(error));
  } finally {
    clearInterval(ticking);
    busy(undefined);
  }
}

function show(said: Answer, asked: State, known: Catalogue): void {
  showAnswer(said, asked, flagsOf(asked, known));
  markConfig(said.warnings);
  void showDocument();
  if (!said.ok) return;
  markCharts({ flip, take });
  followStep(engine);
}

/** The answer as a document, where it is looked at. */
async function showDocument(): Promise<void> {
  if (!(part("document") as HTMLDetailsElement).open) return;
  const command = part("command").textContent ?? "";
  const document_ = await engine.call("document").catch(() => "");
  part("json").textContent = document_;
  part("json").dataset["of"] = command;
}

/** A bit of the first number the other way. */
async function flip(format: string, bit: number): Promise<void> {
  const numbers = (state.fields.get("numbers") ?? "0.1").split(/\s+/);
  const other = await engine.call("flipped", numbers[0], format, bit);
  if (other !== "") change("numbers", [other, ...numbers.slice(1)].join(" "), true);
}

/** A layout of the search, to be looked at by itself. */
function take(layout: Map<string, string>): void {
  for (const [name, value] of layout) set(state, name, value);
  update(true);
}

function change(name: string, value: string, done: boolean): void {
  set(state, name, value);
  if (name === "model" && value !== FILE) {
    state.sets.clear();
    void showModel();
  }
  update(name !== typing);
  typing = done ? "" : name;
}

/** Shows the state everywhere: fields, address, answer. A `step` is undone by the back button. */
function update(step: boolean): void {
  fill(state, catalogue);
  const fragment = `#${toFragment(state, packed)}`;
  if (fragment !== location.hash) history[step ? "pushState" : "replaceState"](null, "", fragment);
  for (const link of document.querySelectorAll<HTMLAnchorElement>("[data-tab]")) {
    link.href = `#${toFragment(state, packed, link.dataset["tab"])}`;
  }
  ask();
}

/** The keys of the model that is asked about. */
async function showModel(): Promise<void> {
  const name = state.fields.get("model") ?? "";
  const text = asksFile(state) ? new TextDecoder().decode(state.file) : await engine.call("preset", name).catch(() => "");
  if (name === (state.fields.get("model") ?? "")) showConfig(state, name, text);
}

/** Takes the state of the address; false where it has one that cannot be read. */
async function readAddress(): Promise<boolean> {
  // An anchor of the page is no state.
  if (location.hash !== "" && !location.hash.includes("v=")) return true;
  const read = await fromFragment(location.hash, state.file);
  if (typeof read === "string") {
    showProblem(read);
    return false;
  }
  state = read;
  packed = await pack(state.file);
  await showState();
  return true;
}

async function showState(): Promise<void> {
  update(false);
  if (catalogue !== undefined) await showModel();
}

async function takeFile(bytes: Uint8Array, name: string): Promise<void> {
  state.file = bytes;
  state.sets.clear();
  state.fields.set("model", FILE);
  packed = await pack(bytes);
  const long = packed === "" ? "; it is too long for a link" : "";
  part("file-note").textContent = `${name}: ${bytes.length.toLocaleString("en")} bytes${long}`;
  update(true);
  await showModel();
}

async function copy(text: string, what: string): Promise<void> {
  let said = `${what} copied`;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    said = `${what}: the browser does not let it be copied`;
  }
  part("copied").textContent = said;
  setTimeout(() => (part("copied").textContent = ""), 3000);
}

function theme(): void {
  const select = part("theme") as HTMLSelectElement;
  const apply = () => (document.documentElement.dataset["theme"] = select.value);
  // A page that opens from disk may have no storage.
  try {
    select.value = localStorage.getItem("theme") ?? "";
  } catch {}
  select.addEventListener("change", () => {
    apply();
    try {
      localStorage.setItem("theme", select.value);
    } catch {}
  });
  apply();
}

async function start(): Promise<void> {
  theme();
  onChange(change);
  onConfig((key, value) => {
    if (value === undefined) state.sets.delete(key);
    else state.sets.set(key, value);
    void showModel();
    update(key !== typing);
    typing = key;
  });
  onFile(
    (bytes, name) => void takeFile(bytes, name),
    (message) => showProblem(message),
  );
  onKeys();
  part("form").addEventListener("submit", (event) => event.preventDefault());
  part("copy-command").addEventListener("click", () => void copy(part("command").textContent ?? "", "command"));
  part("copy-link").addEventListener("click", () => void copy(location.href, "link"));
  part("document").addEventListener("toggle", () => void showDocument());
  part("stop").addEventListener("click", () => engine.stop(new Error("stopped")));
  addEventListener("popstate", () => void readAddress());
  // Before the core is there: what is typed meanwhile changes the state of the address, and is not overwritten by it.
  const readable = await readAddress();
  let width = chartWidth();
  addEventListener("resize", () => {
    if (chartWidth() !== width) ask();
    width = chartWidth();
  });
  try {
    catalogue = JSON.parse(await engine.call("catalogue")) as Catalogue;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const served = location.protocol === "file:" ? " Open napkin.html instead, or serve this folder." : "";
    showProblem(`The core cannot be loaded: ${why}.${served}`);
    return;
  }
  if (readable) await showState();
}

void start();
