// How fast the page is. Only what would be felt fails; the numbers are printed, and those of a release are in docs/benchmarks.md.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { answered, fragment, launch, open, serve } from "./lib/browser.mjs";

let browser;
let server;
before(async () => {
  [browser, server] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser.close();
  server.stop();
});

/**
 * Types values into a field, each once the answer to the last is drawn and `pause` ms have gone by: in the page, since a driver that
 * asks it for news meanwhile takes a part of its time. Gives ms from each input to its answer, and to the end of the frame that
 * shows it.
 */
async function type([name, values, pause]) {
  const field = document.querySelector(`#form [name="${name}"]`);
  const answers = [];
  const drawn = [];
  for (const value of values) {
    const answered = new Promise((done) => {
      const watch = new PerformanceObserver((seen) => {
        watch.disconnect();
        done(seen.getEntries()[0].duration);
      });
      watch.observe({ type: "measure" });
    });
    const since = performance.now();
    field.value = `${value}`;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    answers.push(await answered);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    drawn.push(performance.now() - since);
    await new Promise((done) => setTimeout(done, pause));
  }
  return [answers, drawn];
}

/** Inputs of each kind: fewer where it is asked whether it works, and not how fast. */
const INPUTS = Number(process.env.INPUTS ?? 40);
/** Milliseconds between an answer and the next input: somebody who types fast. */
const PAUSE = 60;

const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];

test("from an input to its answer", async (context) => {
  // Without an accelerator the answer is of the step alone; with one its allocator is replayed, too.
  for (const [tab, question, rest, more] of [
    ["memory", "ledger", " -n 8 --zero 3 --timeline", {}],
    ["memory", "ledger", " -n 8 --zero 3 --hw h100-sxm --timeline", { hw: "h100-sxm" }],
    ["flop", "flops", "", {}],
  ]) {
    const fields = { n: "8", zero: "3", ...more };
    for (const model of ["gpt2", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"]) {
      const { page } = await open(browser, server.address + fragment({ tab, m: model, ...fields }));
      await answered(page, `napkin ${question} ${model}${rest}`);
      // Another step, which is traced; then another number of devices, for which it is known.
      const inputs = question === "ledger" ? ["seq-len", "devices"] : ["seq-len"];
      for (const name of inputs) {
        const values = Array.from({ length: INPUTS }, (_, i) => (name === "devices" ? 16 : 512) + i);
        const [answers, drawn] = await page.evaluate(type, [name, values, PAUSE]);
        const text = await page.locator("#command").textContent();
        assert.ok(`${text} `.includes(` ${values.at(-1)} `), text);
        // The first answers are those of code that is not optimised yet.
        const half = INPUTS >> 1;
        const [first, later] = [median(answers.slice(0, half + 1)), median(answers.slice(half))].map((ms) => ms.toFixed(1));
        context.diagnostic(`${question} ${model}${more.hw ? ` on ${more.hw}` : ""}, another ${name}: ${first}, then ${later} ms from input to answer, ${median(drawn.slice(half)).toFixed(1)} ms to its frame`);
        assert.ok(median(answers) < 10_000);
      }
      await page.context().close();
    }
  }
});

test("600,000 moments are drawn in under a second", async (context) => {
  const fields = { tab: "memory", m: "llama-3.1-405b", profile: "hf-eager", "grad-accum": "4", "set.num_hidden_layers": "700" };
  const { page } = await open(browser, server.address + fragment(fields));
  await page.locator("#ledger-timeline > .scroll > svg").waitFor({ timeout: 120_000 });
  const ops = await page.locator("#ledger-timeline > .scroll > svg").textContent();
  context.diagnostic(`drawn: ${/[\d,]+ ops/.exec(ops)?.[0]}`);
  const taken = await page.evaluate(async () => {
    const svg = document.querySelector("#ledger-timeline > .scroll > svg");
    const box = svg.getBoundingClientRect();
    const at = (share, type) =>
      svg.dispatchEvent(new PointerEvent(type, { clientX: box.left + box.width * share, clientY: box.top + 100, pointerId: 1, bubbles: true }));
    svg.setPointerCapture = () => {};
    const since = performance.now();
    at(0.1, "pointerdown");
    at(0.9, "pointerup");
    while (document.querySelector("#ledger-timeline > .scroll > svg") === svg) await new Promise((done) => setTimeout(done, 1));
    return performance.now() - since;
  });
  context.diagnostic(`drawn again: ${taken.toFixed(0)} ms`);
  assert.ok(taken < 1000, `${taken} ms`);
});
