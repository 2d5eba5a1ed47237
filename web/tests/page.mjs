// The page answers every kind of question, served or from disk, complains of nothing and asks nobody.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { answered, dist, documentOf, fragment, launch, open, serve } from "./lib/browser.mjs";

let browser;
let server;
before(async () => {
  [browser, server] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser.close();
  server.stop();
});

const FIRST = "napkin ledger llama-3.1-8b --hw h100-sxm -n 8 --zero 3 --timeline";
const TABS = {
  flop: "napkin flops llama-3.1-8b",
  time: "napkin time llama-3.1-8b --hw h100-sxm -n 8 --tokens 15T",
  fit: "napkin fit llama-3.1-8b --hw h100-sxm -n 8 --zero 3",
  layouts: "napkin layout llama-3.1-8b --hw h100-sxm -n 8 --gbs 1024",
  formats: "napkin dtype 0.1",
  einsum: "napkin einsum 'b h q d, b h k d -> b h q k' b=1 h=32 q=8192 k=8192 d=128 --hw h100-sxm -n 8",
  compare: "napkin compare llama-3.1-8b --hw h100-sxm -n 8 --zero 3 --vary recompute=none,full",
};

test("served, every tab answers", async () => {
  const { page, complaints, requests } = await open(browser, server.address);
  await answered(page, FIRST);
  assert.match(await page.locator("#answer").textContent(), /GiB of 79.65 GiB/);
  for (const chart of ["ledger-ledger", "ledger-timeline"]) assert.equal(await page.locator(`#${chart} > .scroll > svg`).count(), 1, chart);
  for (const [tab, command] of Object.entries(TABS)) {
    const fields = { tokens: tab === "time" ? "15T" : "", vary: tab === "compare" ? "recompute=none,full" : "" };
    await page.locator(`[data-tab="${tab}"]`).click();
    for (const [name, value] of Object.entries(fields)) if (value) await page.locator(`#own [name="${name}"]`).fill(value);
    await answered(page, command);
    assert.equal(await page.locator("nav [aria-current]").textContent(), await page.locator(`[data-tab="${tab}"]`).textContent());
  }
  assert.deepEqual(complaints, []);
  const outside = requests.filter((url) => !url.startsWith(server.address) && !/^(blob|data):/.test(url));
  assert.deepEqual(outside, []);
});

test("from disk, as one file", async () => {
  const { page, complaints, requests } = await open(browser, pathToFileURL(`${dist}napkin.html`).href);
  await answered(page, FIRST);
  await page.locator('[data-tab="formats"]').click();
  await answered(page, TABS.formats);
  assert.deepEqual(complaints, []);
  assert.deepEqual(requests.filter((url) => !/^(file|blob|data):/.test(url)), []);
});

test("the policy lets nothing out", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  const sent = await page.evaluate(() => fetch("https://example.com/").then(() => true, () => false));
  assert.equal(sent, false);
  const ran = await page.evaluate(() => {
    const script = document.createElement("script");
    script.textContent = "window.injected = true";
    document.body.append(script);
    return window.injected === true;
  });
  assert.equal(ran, false);
});

test("the form is there before the core", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  await page.route("**/napkin.wasm", (route) => route.abort());
  await page.goto(server.address);
  assert.equal(await page.locator('[name="hw"]').inputValue(), "h100-sxm");
  assert.ok((await page.locator("#presets option").count()) > 40);
  await page.locator("#problems").waitFor({ state: "visible" });
  assert.match(await page.locator("#problems").textContent(), /core cannot be loaded/);
});

test("what is typed before the core is there changes the question of the address", async () => {
  const context = await browser.newContext();
  const page = await context.newPage();
  let serving;
  const asked = new Promise((resolve) => {
    serving = resolve;
  });
  await page.route("**/napkin.wasm", serving);
  await page.goto(server.address + fragment({ tab: "flop", m: "qwen3-0.6b" }));
  const route = await asked;
  await page.locator('#form [name="model"]').fill("gpt2");
  await route.continue();
  await answered(page, "napkin flops gpt2");
});

test("every choice of a list is understood", async () => {
  const { page } = await open(browser, server.address + fragment({ tab: "memory", m: "smollm2-135m", hw: "h100-sxm" }));
  const lists = ["precision", "optimizer", "zero", "recompute", "profile"];
  await answered(page, "napkin ledger smollm2-135m --hw h100-sxm --timeline");
  for (const name of lists) {
    const list = page.locator(`#form [name="${name}"]`);
    for (const value of await list.locator("option").evaluateAll((all) => all.map((one) => one.value))) {
      await list.selectOption(value);
      const flag = value === "" ? "" : ` --${name} ${value}`;
      await answered(page, `napkin ledger smollm2-135m --hw h100-sxm${flag} --timeline`);
    }
    await list.selectOption("");
  }
});

test("where a step does not fit, that is answered before what would make it fit", async () => {
  const { page } = await open(browser, server.address + fragment({ m: "llama-3.1-405b", hw: "h100-sxm", n: "8", zero: "3" }));
  const command = "napkin ledger llama-3.1-405b --hw h100-sxm -n 8 --zero 3 --timeline";
  const changes = "changes that free memory";
  // Already with the command of the whole answer; looked at in one piece, for the rest is on its way.
  const first = ([wanted, rest]) => {
    const text = (id) => document.getElementById(id).textContent;
    const verdict = / of 79\.65 GiB/.test(text("answer")) && text("command") === wanted;
    return verdict && document.body.classList.contains("more") && !text("report").includes(rest);
  };
  await page.waitForFunction(first, [command, changes], { polling: 5, timeout: 60_000 });
  await answered(page, command);
  assert.equal(await page.getByText(changes).count(), 1);
  const document_ = JSON.parse(await documentOf(page));
  assert.equal(document_.command, command);
  assert.ok(document_.result.levers !== undefined);
});

test("bits flip", async () => {
  const { page } = await open(browser, server.address + fragment({ tab: "formats", numbers: "0.5" }));
  await answered(page, "napkin dtype 0.5");
  await page.locator('[data-name="bf16:0"]').click();
  await answered(page, "napkin dtype -0.5");
  await page.locator('[data-name="bf16:8"]').focus();
  await page.keyboard.press("Enter");
  await answered(page, "napkin dtype -1");
});

test("a part of the step is drawn again, and moments are read", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  const svg = page.locator("#ledger-timeline > .scroll > svg");
  await svg.scrollIntoViewIfNeeded();
  const whole = await svg.innerHTML();
  const box = await svg.boundingBox();
  const at = (share) => [box.x + box.width * share, box.y + box.height / 2];
  await page.mouse.move(...at(0.4));
  await page.waitForFunction(() => /activations .* GiB/.test(document.querySelector(".readout").textContent));
  await page.mouse.down();
  await page.mouse.move(...at(0.6), { steps: 4 });
  await page.mouse.up();
  await page.locator("#ledger-timeline button").waitFor({ state: "visible" });
  assert.notEqual(await svg.innerHTML(), whole);
  await svg.focus();
  await page.keyboard.press("Escape");
  await page.locator("#ledger-timeline button").waitFor({ state: "hidden" });
});

test("assumptions change where they stand", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  const field = page.locator('#assumed [name="seq-len"]');
  await field.fill("2048");
  await answered(page, FIRST.replace("--timeline", "--seq-len 2048 --timeline"));
  assert.equal(await page.locator('#form [name="seq-len"]').inputValue(), "2048");
  assert.equal(await page.evaluate(() => document.activeElement?.getAttribute("name")), "seq-len");
});

test("a cell of the search is taken", async () => {
  const fields = { tab: "layouts", m: "smollm2-135m", hw: "h100-sxm", n: "8" };
  const { page } = await open(browser, server.address + fragment(fields));
  await answered(page, "napkin layout smollm2-135m --hw h100-sxm -n 8 --gbs 1024");
  await page.locator('[data-name="tp=1 pp=2"]').click();
  await answered(page, "napkin layout smollm2-135m --hw h100-sxm -n 8 --tp 1 --pp 2");
});
