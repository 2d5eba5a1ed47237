// The page for everybody: keys alone, screen readers, light and dark, narrow windows, print.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before, test } from "node:test";
import { answered, fragment, launch, open, pictures, serve } from "./lib/browser.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let browser;
let server;
before(async () => {
  [browser, server] = await Promise.all([launch(), serve()]);
});
after(async () => {
  await browser.close();
  server.stop();
});

const TABS = ["memory", "flop", "time", "fit", "layouts", "formats", "einsum", "compare"];
const FIRST = "napkin ledger llama-3.1-8b --hw h100-sxm -n 8 --zero 3 --timeline";

async function settled(page) {
  await page.locator("#answer strong").waitFor({ timeout: 60_000 });
}

const address = (tab) =>
  server.address + fragment({ tab, m: "smollm2-135m", hw: "h100-sxm", n: "8", zero: "3", tokens: "1T", vary: "zero=1,3" });

for (const colorScheme of ["light", "dark"]) {
  test(`no serious finding in any tab, ${colorScheme}`, async () => {
    for (const tab of TABS) {
      const { page } = await open(browser, address(tab), { colorScheme });
      await settled(page);
      await page.screenshot({ path: path.join(pictures, `${tab}-${colorScheme}.png`), fullPage: true });
      // The page's own policy holds for what is put into it, but not for the driver.
      await page.evaluate(axe);
      const found = await page.evaluate(() => window.axe.run());
      const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
      const said = serious.map((one) => `${one.id}: ${one.nodes.map((node) => node.target + " " + node.failureSummary).join("; ")}`);
      assert.deepEqual(said, [], tab);
      await page.context().close();
    }
  });
}

test("no tab scrolls sideways at 320 pixels", async () => {
  for (const tab of TABS) {
    const { page } = await open(browser, address(tab), { viewport: { width: 320, height: 700 } });
    await settled(page);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    await page.screenshot({ path: path.join(pictures, `${tab}-320.png`), fullPage: true });
    assert.ok(wide <= 320, `${tab}: ${wide}`);
    await page.context().close();
  }
});

test("twice as large, nothing scrolls sideways", async () => {
  // A window of 1280 pixels at 200 % has 640 of them.
  const { page } = await open(browser, server.address, { viewport: { width: 640, height: 450 }, deviceScaleFactor: 2 });
  await answered(page, FIRST);
  assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 640);
});

test("print shows the answer and not the form", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  await page.emulateMedia({ media: "print" });
  assert.equal(await page.locator("#form").isVisible(), false);
  assert.equal(await page.locator("#ledger-timeline > .scroll > svg").isVisible(), true);
  await page.screenshot({ path: path.join(pictures, "print.png"), fullPage: true });
});

test("the theme has three states and is kept", async () => {
  const { page } = await open(browser, server.address, { colorScheme: "light" });
  await answered(page, FIRST);
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.locator("#theme").selectOption("dark");
  const dark = await ground();
  assert.notEqual(light, dark);
  await page.reload();
  assert.equal(await ground(), dark);
  await page.locator("#theme").selectOption("");
  assert.equal(await ground(), light);
});

test("all by keys", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  const focused = () => page.evaluate(() => document.activeElement?.getAttribute("name") ?? document.activeElement?.id);
  await page.keyboard.press("/");
  assert.equal(await focused(), "model");
  await page.keyboard.type("gpt2");
  await answered(page, FIRST.replace("llama-3.1-8b", "gpt2"));
  // Digits are text where something is typed.
  await page.keyboard.press("2");
  await page.keyboard.press("Backspace");
  await page.keyboard.press("Tab");
  await page.keyboard.press("Tab");
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press("2");
  await answered(page, "napkin flops gpt2");
  await page.keyboard.press("6");
  await answered(page, "napkin dtype 0.1");
  await page.keyboard.press("?");
  assert.equal(await page.locator("#help").isVisible(), true);
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#help").isVisible(), false);
  // From mark to mark of the drawing, and one bit the other way: the sign of fp32.
  await page.locator('[data-name="fp32:0"]').focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.evaluate(() => document.activeElement.dataset.name), "fp32:1");
  await page.keyboard.press("ArrowLeft");
  await page.keyboard.press("Enter");
  await answered(page, "napkin dtype -0.10000000149011612");
  assert.equal(await page.evaluate(() => document.activeElement.dataset.name), "fp32:0");
  // The moments of a step.
  await page.keyboard.press("1");
  await answered(page, FIRST.replace("llama-3.1-8b", "gpt2"));
  await page.locator("#ledger-timeline > .scroll > svg").focus();
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => / = /.test(document.querySelector(".readout").textContent));
  for (let i = 0; i < 10; i++) await page.keyboard.press("Shift+ArrowRight");
  await page.keyboard.press("Enter");
  await page.locator("#ledger-timeline button").waitFor({ state: "visible" });
});

test("a tab that is taken at once is of what was typed", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  await page.evaluate(() => {
    const model = document.querySelector("#form [name='model']");
    for (const typed of ["gpt", "gpt2"]) {
      model.value = typed;
      model.dispatchEvent(new Event("input", { bubbles: true }));
    }
    document.querySelector("[data-tab='flop']").click();
  });
  await answered(page, "napkin flops gpt2");
  await page.goBack();
  await answered(page, FIRST.replace("llama-3.1-8b", "gpt2"));
});

test("every field has a name, and the tab key reaches the answer's parts in order", async () => {
  const { page } = await open(browser, server.address);
  await answered(page, FIRST);
  const order = [];
  for (let i = 0; i < 40; i++) {
    await page.keyboard.press("Tab");
    order.push(await page.evaluate(() => document.activeElement.closest("header, form, nav, main, footer")?.tagName ?? "A"));
  }
  const first = (name) => order.indexOf(name);
  assert.ok(first("HEADER") < first("FORM") && first("FORM") < first("NAV") && first("NAV") < first("MAIN"), order.join(" "));
});
