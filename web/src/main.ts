// The page: its state, the question it stands for, and the answer.

import { markConfig, onConfig, showConfig } from "./config.ts";
import { onFile } from "./drop.ts";
import { core, Engine, FILE, Stale, type Answer, type Question } from "./engine.ts";
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
/** The question that was asked last, unless it came to nothing. */
let last: Question | undefined;
/** Writing the address takes a browser as long as an answer: it is written once that is shown, or after so many milliseconds. */
const SETTLED = 500;
/** After so many milliseconds without an input, changes that would make a step fit are looked for. */
const CALM = 150;
const NO_LEVERS = "--no-levers";
let unwritten: { fragment: string; push: boolean; timer: number } | undefined;
/** What is being typed into: all of it is one step of the back button. */
let typing = "";
/** Width of charts, read where the page is laid out: asking a page that has changed would lay it out before the core is asked. */
let width = 0;
/** Whether fields and links are still those of an earlier state: they follow with the address. */
let unsettled = false;

const engine = new Engine(core());

const NO_FILE = new Uint8Array();

/** Asks the question of the page, unless that is what was asked last: a field that is left says once more what was typed. */
function ask(): void {
  if (catalogue === undefined) return;
  const since = performance.now();
  const question = { words: wordsOf(state, catalogue), file: asksFile(state) ? state.file : NO_FILE, width };
  if (last !== undefined && isSame(question, last)) return;
  last = question;
  void answer(question, state, catalogue, since);
}

const isSame = (one: Question, other: Question) =>
  one.file === other.file && one.width === other.width && one.words.join("\0") === other.words.join("\0");

async function answer(question: Question, asked: State, known: Catalogue, since: number): Promise<void> {
  const ticking = setInterval(() => busy(since), 250);
  try {
    const first = await engine.ask(withoutLevers(question));
    const more = first.ok && first.no && question.words[0] === "ledger";
    show(first, asked, known, more);
    performance.measure("answer", { start: since });
    requestAnimationFrame(() => setTimeout(settle));
    if (!more) return;
    await new Promise((done) => setTimeout(done, CALM));
    if (last === question) show(await engine.ask(question), asked, known, false);
  } catch (error) {
    if (!(error instanceof Stale)) fail(error instanceof Error ? error.message : String(error));
  } finally {
    clearInterval(ticking);
    busy(undefined);
  }
}

/** The question whose answer is there sooner: changes that would make a step fit take longer than all else. */
function withoutLevers(question: Question): Question {
  return question.words[0] === "ledger" ? { ...question, words: [...question.words, NO_LEVERS] } : question;
}

/** Shows what is wrong; the question may be asked again. */
function fail(text: string): void {
  last = undefined;
  document.body.classList.remove("more");
  showProblem(text);
}

/** Shows an answer; of one with `more` to come the document waits. */
function show(said: Answer, asked: State, known: Catalogue, more: boolean): void {
  document.body.classList.toggle("more", more);
  const changed = showAnswer(said, asked, flagsOf(asked, known));
  markConfig(said.warnings);
  if (!more) void showDocument();
  markCharts(changed, { flip, take });
  followStep(changed, engine);
}

/** The answer as a document, where it is looked at. */
async function showDocument(): Promise<void> {
  if (!(part("document") as HTMLDetailsElement).open || document.body.classList.contains("more")) return;
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

/**
 * Shows the state everywhere: fields, address, answer. A `step` is undone by the back button. What goes on being `typed` stands in
 * its field, and the rest of the page has time until it is answered: layout and paint would take a processor from the core.
 */
function update(step: boolean, typed = !step): void {
  // First of all: the core answers while the page shows the question.
  ask();
  if (step) writeAddress();
  clearTimeout(unwritten?.timer);
  const push = step || unwritten?.push === true;
  unwritten = { fragment: `#${toFragment(state, packed)}`, push, timer: setTimeout(settle, SETTLED) };
  unsettled = true;
  if (!typed) showFields();
}

/** Shows the state in fields and links, where that is not done. */
function showFields(): void {
  if (!unsettled) return;
  unsettled = false;
  fill(state, catalogue);
  for (const link of document.querySelectorAll<HTMLAnchorElement>("[data-tab]")) {
    link.href = `#${toFragment(state, packed, link.dataset["tab"])}`;
  }
}

function settle(): void {
  width = chartWidth();
  showFields();
  writeAddress();
}

/** Makes the address that of the state, where it is not. */
function writeAddress(): void {
  if (unwritten === undefined) return;
  const { fragment, push, timer } = unwritten;
  unwritten = undefined;
  clearTimeout(timer);
  if (fragment !== location.hash) history[push ? "pushState" : "replaceState"](null, "", fragment);
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
    fail(read);
    return false;
  }
  state = read;
  packed = await pack(state.file);
  await showState();
  return true;
}

async function showState(): Promise<void> {
  update(false, false);
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
    (message) => fail(message),
  );
  onKeys();
  part("form").addEventListener("submit", (event) => event.preventDefault());
  part("copy-command").addEventListener("click", () => void copy(part("command").textContent ?? "", "command"));
  part("copy-link").addEventListener("click", () => {
    writeAddress();
    void copy(location.href, "link");
  });
  part("document").addEventListener("toggle", () => void showDocument());
  part("stop").addEventListener("click", () => engine.stop(new Error("stopped")));
  addEventListener("popstate", () => {
    clearTimeout(unwritten?.timer);
    unwritten = undefined;
    void readAddress();
  });
  // A tab is taken of what was typed last, and who leaves by one, or for good, comes back to that.
  for (const kind of ["click", "auxclick"]) part("tabs").addEventListener(kind, settle);
  addEventListener("pagehide", writeAddress);
  // Before the core is there: what is typed meanwhile changes the state of the address, and is not overwritten by it.
  const readable = await readAddress();
  width = chartWidth();
  addEventListener("resize", () => {
    width = chartWidth();
    ask();
  });
  try {
    catalogue = JSON.parse(await engine.call("catalogue")) as Catalogue;
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const served = location.protocol === "file:" ? " Open napkin.html instead, or serve this folder." : "";
    fail(`The core cannot be loaded: ${why}.${served}`);
    return;
  }
  if (readable) await showState();
}

void start();
