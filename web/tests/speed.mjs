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

/** Notes how long after an input its answer has been drawn: in the frame behind the one that measures it. */
function drawings() {
  let typed = 0;
  window.drawn = [];
  document.addEventListener("input", (event) => (typed = event.timeStamp), true);
  const measure = performance.measure.bind(performance);
  performance.measure = (...given) => {
    requestAnimationFrame(() => setTimeout(() => typed > 0 && window.drawn.push(performance.now() - typed)));
    return measure(...given);
  };
}

/** Inputs of each kind: fewer where it is asked whether it works, and not how fast. */
const INPUTS = Number(process.env.INPUTS ?? 15);

const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];

test("from an input to its answer", async (context) => {
  // No accelerator: where a step does not fit, changes that make it fit are traced as well.
  const fields = { n: "8", zero: "3" };
  for (const [tab, question, rest] of [
    ["memory", "ledger", " -n 8 --zero 3 --timeline"],
    ["flop", "flops", ""],
  ]) {
    for (const model of ["gpt2", "llama-3.1-8b", "llama-3.1-405b", "deepseek-v3"]) {
      const { page } = await open(browser, server.address + fragment({ tab, m: model, ...fields }));
      await answered(page, `napkin ${question} ${model}${rest}`);
      await page.evaluate(drawings);
      // Another step, which is traced; then another number of devices, for which it is known.
      const inputs = question === "ledger" ? ["--seq-len", "-n"] : ["--seq-len"];
      for (const flag of inputs) {
        await page.evaluate(() => {
          performance.clearMeasures("answer");
          window.drawn = [];
        });
        const field = page.locator(`#form [name="${flag === "-n" ? "devices" : "seq-len"}"]`);
        for (let i = 0; i < INPUTS; i++) {
          const value = flag === "-n" ? 16 + i : 512 + i;
          await field.fill(`${value}`);
          await page.waitForFunction(
            ([wanted, count]) => `${document.getElementById("command").textContent} `.includes(wanted) && window.drawn.length === count,
            [`${flag} ${value} `, i + 1],
          );
        }
        const measured = await page.evaluate(() => performance.getEntriesByName("answer").map((one) => one.duration));
        const drawn = await page.evaluate(() => window.drawn);
        const said = `median ${median(measured).toFixed(1)} ms from input to answer, ${median(drawn).toFixed(1)} ms to its frame`;
        context.diagnostic(`${question} ${model}, another ${flag}: ${said}`);
        assert.ok(median(measured) < 10_000);
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
