//! What a reader says about a key that is missing, wrong, or not understood.

use units::diagnostic::Diagnostic;

use super::json::{Kind, Member};
use super::reader::{Got, MAX_PROBLEMS, Reader};
use super::scalar::{self, Refusal};

impl Reader<'_> {
    pub(super) fn unknown(&mut self, key: &str, member: &Member, pointer: &str) {
        if self.is_full(false) {
            return;
        }
        let place = self.config.location(member.key_span, pointer);
        let value = &member.value;
        let shown = scalar::short(value);
        let mut warning = Diagnostic::warning("T0118", format!("`{key}` = {shown} is not understood"))
            .at(place)
            .effect("not counted; if it changes the model, the numbers are those of the model without it");
        let absent: Vec<&str> = self.asked.iter().map(String::as_str).filter(|asked| !self.has(asked)).collect();
        if let Some(near) = super::near_matches(key, &absent).first() {
            warning = warning.help(format!("did you mean `{near}`?"));
        }
        self.note(warning);
    }

    pub(super) fn note(&mut self, warning: Diagnostic) {
        self.warnings += 1;
        if self.warnings <= MAX_PROBLEMS {
            self.problems.push(warning);
        }
    }

    /// Whether one more problem would only be counted, so that its text need not be made.
    pub(super) fn is_full(&mut self, severe: bool) -> bool {
        let count = if severe { &mut self.errors } else { &mut self.warnings };
        let full = *count >= MAX_PROBLEMS;
        if full {
            *count += 1;
        }
        full
    }

    pub(super) fn fail(&mut self, key: &str, error: Diagnostic) {
        self.bad.insert(key.to_owned());
        self.errors += 1;
        if self.errors <= MAX_PROBLEMS {
            self.problems.push(error);
        }
    }

    pub(super) fn odd_form(&mut self, got: &Got<'_>, form: &str) {
        if self.is_full(false) {
            return;
        }
        let shown = scalar::short(got.found.value);
        let plain = match &got.found.value.kind {
            Kind::String(text) => text.trim().replace([',', '_'], "").to_ascii_lowercase(),
            Kind::Number(text) => (if &**text == "0" { "false" } else { "true" }).to_owned(),
            _ => shown.clone(),
        };
        let warning = Diagnostic::warning("T0113", format!("`{}` is {form}: {shown}", got.key))
            .at(self.at(&got.found))
            .effect(format!("read as {plain}"))
            .help(format!("write {plain}"));
        self.note(warning);
    }

    pub(super) fn refused(&mut self, got: &Got<'_>, refusal: &Refusal) {
        self.bad.insert(got.key.clone());
        if self.is_full(true) {
            return;
        }
        let place = self.at(&got.found);
        let key = got.key.rsplit_once('.').filter(|(_, index)| index.parse::<usize>().is_ok());
        let help = match key {
            Some(_) => format!("correct item {}", got.key),
            None => format!("--set {}=...", got.key),
        };
        let error = Diagnostic::error(refusal.code, format!("`{}` is {}", got.key, refusal.is))
            .at(place.clone())
            .label(place, scalar::short(got.found.value))
            .why(format!("expected {}", refusal.expected))
            .help(help);
        self.fail(&got.key, error);
    }

    pub(super) fn wrong_kind(&mut self, got: &Got<'_>, expected: &'static str) {
        let refusal = Refusal { code: "T0202", is: got.found.value.kind_name().to_owned(), expected };
        self.refused(got, &refusal);
    }

    pub(super) fn missing(&mut self, names: &[&str]) {
        let name = names.first().copied().unwrap_or("");
        self.bad.extend(names.iter().map(|name| (*name).to_owned()));
        if self.is_full(true) {
            return;
        }
        let null = self.config.find(name).filter(|found| found.value.is_null());
        let others = names.get(1..).unwrap_or(&[]);
        let mut message = match null {
            Some(_) => format!("`{name}` is null"),
            None => format!("`{name}` is missing"),
        };
        if !others.is_empty() {
            let list: Vec<String> = others.iter().map(|other| format!("`{other}`")).collect();
            message = format!("{message}, and so is {}", list.join(" and "));
        }
        let effective = self.config.effective();
        let place = if let Some(found) = &null {
            self.at(found)
        } else {
            let span = super::Span { end: effective.span.start + 1, ..effective.span };
            self.config.location(span, &self.config.effective_pointer())
        };
        let mut error = Diagnostic::error("T0201", message).at(place).why("no default would be safe");
        let present: Vec<&str> = effective.members().iter().map(|m| &*m.key).collect();
        let near = super::near_matches(name, &present);
        let near = near.iter().find(|near| !self.asked.contains(*near));
        let is_near = |member: &&Member| near.is_some_and(|near| *near == *member.key);
        if let Some(member) = effective.members().iter().find(is_near) {
            let pointer = self.config.effective_pointer();
            let location = self.config.location(member.key_span, &pointer);
            let rename = format!("rename `{}` to `{name}`", member.key);
            error = error.label(location, "is this it?").help(rename);
            // Said here; saying again that the key is not understood would add nothing.
            self.known.insert(member.key.to_string());
        }
        let error = error.help(format!("--set {name}=..."));
        self.fail(name, error);
    }
}
