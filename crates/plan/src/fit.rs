//! What fits, by states alone: the largest parameter count, or whether a given one fits, for each ZeRO stage.
//!
//! A traced model, with activations, is the business of the ledger.

use nn::blocks::Blocks;
use nn::optim::Kind;
use nn::spec::Tuning;
use nn::step::{ParamInfo, Precision};
use units::{Bytes, Diagnostic, Diagnostics, Params};

use crate::formulas::known;
use crate::hardware::Hardware;
use crate::phrase;
use crate::report::{
    Assumption, Block, Cell, Column, Derivation, KeyValue, Origin, Phrase, Report, Row, Table, Value, Verdict,
};
use crate::sharding::{Wrap, gradient_bytes, weight_bytes};
use crate::states::{ModelBytes, ParameterBytes, Zero};

/// The memory of one device.
#[derive(Clone, Debug, PartialEq)]
pub enum Memory {
    /// A device of the table: as the runtime reports it, and nominal.
    Of(Box<Hardware>),
    /// A size the user gave.
    Given(Bytes),
}

impl Memory {
    /// The bytes to plan with.
    pub fn capacity(&self) -> Bytes {
        match self {
            Self::Of(hardware) => hardware.capacity(),
            Self::Given(bytes) => *bytes,
        }
    }

    fn nominal(&self) -> Option<Bytes> {
        match self {
            Self::Of(hardware) => Some(hardware.capacity_nominal()),
            Self::Given(_) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Of(hardware) => hardware.display.clone(),
            Self::Given(_) => "devices".to_owned(),
        }
    }
}

/// A value with the knowledge whether somebody gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice<T> {
    /// The value.
    pub value: T,
    /// True if it was given, not assumed.
    pub given: bool,
}

impl<T> Choice<T> {
    /// What the user gave, or else the default.
    pub fn or(given: Option<T>, default: T) -> Self {
        let is_given = given.is_some();
        Self { value: given.unwrap_or(default), given: is_given }
    }

    const fn origin(&self) -> Origin {
        if self.given { Origin::Given } else { Origin::Default }
    }
}

/// What is to fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// Its name.
    pub name: String,
    /// How many parameters it has.
    pub parameters: Params,
    /// Each of them; empty for a bare count.
    pub tensors: Vec<ParamInfo>,
    /// Its blocks; a bare count has none.
    pub blocks: Option<Blocks>,
    /// Which of them are trained, and how the rest is stored.
    pub tuning: Tuning,
}

/// The question.
#[derive(Clone, Debug, PartialEq)]
pub struct StatesRequest {
    /// Memory of one device.
    pub memory: Memory,
    /// How many, all of them data-parallel.
    pub devices: Choice<u64>,
    /// Which copy in which type.
    pub recipe: Choice<Precision>,
    /// Whose states.
    pub optimizer: Choice<Kind>,
    /// What is divided.
    pub zero: Choice<Zero>,
    /// What is gathered at a time where parameters are divided, if that is to be counted.
    pub unit: Option<Wrap>,
    /// A model to fit; without one, the largest is asked for.
    pub subject: Option<Subject>,
}

/// Bytes of states: of every parameter alike, or of a model as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateBytes {
    Each(ParameterBytes, Params),
    Whole(ModelBytes),
}

impl StateBytes {
    fn on_device(&self, zero: Zero, dp: u64) -> Bytes {
        match self {
            Self::Each(bytes, parameters) => bytes.on_device(*parameters, zero, dp),
            Self::Whole(bytes) => bytes.on_device(zero, dp),
        }
    }
}

impl StatesRequest {
    /// Answers it.
    ///
    /// # Errors
    /// No devices.
    pub fn report(&self) -> Result<Report, Diagnostics> {
        if self.devices.value == 0 {
            return Err(Diagnostic::error("", "nothing fits on no devices").help("--devices 8").into());
        }
        let mut report = match &self.subject {
            Some(subject) => self.given(subject)?,
            None => self.largest()?,
        };
        report.inputs = Value::map()
            .with(
                "model",
                self.subject
                    .as_ref()
                    .map(|s| Value::map().with("name", s.name.as_str()).with("parameters", s.parameters)),
            )
            .with(
                "hardware",
                match &self.memory {
                    Memory::Of(hardware) => Some(hardware.name.as_str()),
                    Memory::Given(_) => None,
                },
            )
            .with("devices", self.devices.value)
            .with("precision", self.recipe.value.name())
            .with("optimizer", self.optimizer.value.name())
            .with("zero", self.zero.value as u8);
        report.assumptions = self.assumptions();
        Ok(report)
    }

    /// Bytes of every parameter alike.
    fn bytes(&self) -> Result<ParameterBytes, Diagnostic> {
        ParameterBytes::of(self.recipe.value, self.optimizer.value).ok_or_else(|| {
            let name = self.optimizer.value.name();
            Diagnostic::error("T0310", format!("the states of `{name}` depend on the shapes of the parameters"))
                .why("a count of parameters has none")
                .help(format!("napkin fit llama-3.1-8b --states-only --optimizer {name}"))
                .help("--optimizer adamw")
        })
    }

    fn each(&self, capacity: Bytes) -> Phrase {
        phrase![self.devices.value, " × ", capacity]
    }

    fn largest(&self) -> Result<Report, Diagnostic> {
        let (bytes, zero, dp) = (self.bytes()?, self.zero.value, self.devices.value);
        let capacity = self.memory.capacity();
        let most = bytes.largest(capacity, zero, dp);
        let fill = self.each(capacity);
        let fill = Phrase(
            [phrase!["states fill "].0, fill.0, phrase![" exactly; nothing is left for activations"].0].concat(),
        );
        let mut report = Report::new("fit", phrase![most, " parameters"]).qualified(fill);
        let mut rows = vec![self.per_parameter_row(bytes)];
        let nominal = self.memory.nominal().map(|nominal| (nominal, bytes.largest(nominal, zero, dp)));
        if let (Some((size, largest)), Memory::Of(hardware)) = (nominal, &self.memory) {
            if let Some((reported, source)) = &hardware.memory.reported {
                let note = phrase![
                    self.devices.value,
                    " × ",
                    Cell::Exact(u128::from(reported.get())),
                    " B · ",
                    source.to_string()
                ];
                rows.push(KeyValue::new("by reported size", bytes.largest(*reported, zero, dp)).note(note));
            }
            let note = phrase![
                self.devices.value,
                " × ",
                Cell::Exact(u128::from(size.get())),
                " B · ",
                hardware.memory.source.to_string()
            ];
            rows.push(KeyValue::new("by nominal size", largest).note(note));
        }
        report.blocks.push(Block::key_values("", rows));
        let mut table =
            Table::new("by ZeRO stage", [Column::left("zero"), Column::right("largest"), Column::left("divided")]);
        for stage in Zero::ALL {
            let largest = bytes.largest(capacity, *stage, dp);
            table.rows.push(Row::new([stage.name().into(), largest.into(), divided(*stage).into()]));
        }
        report.blocks.push(table.into());
        let stages = Zero::ALL.iter().map(|stage| {
            Value::map().with("zero", *stage as u8).with("parameters", bytes.largest(capacity, *stage, dp))
        });
        report.result = Value::map()
            .with("parameters", most)
            .with("parameters_nominal", nominal.map(|(_, largest)| largest))
            .with("capacity_bytes", capacity)
            .with("capacity_nominal_bytes", self.memory.nominal())
            .with("by_zero", Value::List(stages.collect()))
            .with("bytes_per_parameter", per_parameter(bytes));
        let formula = known("largest-states");
        let (c, r, q) = (u128::from(capacity.get()), bytes.replicated(zero), bytes.sharded(zero));
        report.derivations.push(Derivation {
            of: "parameters".to_owned(),
            formula: "largest-states",
            expression: formula.expression.to_owned(),
            substituted: phrase![Cell::Exact(c), " × ", dp, " ÷ (", r, " × ", dp, " + ", q, ")"],
            result: most.into(),
            source: formula.source.to_owned(),
            anchor: formula.anchor,
        });
        Ok(report)
    }

    fn given(&self, subject: &Subject) -> Result<Report, Diagnostic> {
        let (parameters, zero, dp) = (subject.parameters, self.zero.value, self.devices.value);
        let bytes = match self.bytes() {
            Ok(each) if subject.tuning.is_plain() => StateBytes::Each(each, parameters),
            Err(problem) if subject.tensors.is_empty() => return Err(problem),
            _ => {
                let (recipe, optimizer) = (self.recipe.value, self.optimizer.value);
                StateBytes::Whole(ModelBytes::of(&subject.tensors, &subject.tuning, recipe, optimizer))
            }
        };
        let capacity = self.memory.capacity();
        let gathered = self.gathered(subject)?;
        let states = bytes.on_device(zero, dp) + gathered.unwrap_or(Bytes::ZERO);
        let fits = states <= capacity;
        let verdict = if fits {
            phrase!["states fit, ", capacity - states, " left for activations"]
        } else {
            phrase!["does not fit, ", states - capacity, " over"]
        };
        let mut report = Report::new("fit", phrase![states, " of ", capacity]).qualified(verdict);
        report.headline.qualifiers.push(phrase!["on each of ", self.devices.value, " × ", self.memory.name()]);
        if !fits {
            report.verdict = Verdict::No;
        }
        let note = phrase![Cell::Exact(u128::from(parameters.get())), " · ", subject.name.as_str()];
        let mut rows = vec![KeyValue::new("parameters", parameters).note(note), self.bytes_row(bytes)];
        if let Some(gathered) = gathered {
            let what = match self.unit {
                Some(Wrap::Model) => "parameters and gradients of the whole model, which is one unit",
                _ => "parameters and gradients of what is outside of blocks and of the largest block",
            };
            rows.push(KeyValue::new("gathered", gathered).note(what));
        }
        report.blocks.push(Block::key_values("", rows));
        let columns = [
            Column::left("zero"),
            Column::one_unit("states"),
            Column::right("of capacity"),
            Column::left("fits"),
            Column::left("divided"),
        ];
        let mut table = Table::new("by ZeRO stage", columns);
        let mut stages = Vec::new();
        for stage in Zero::ALL {
            let states = bytes.on_device(*stage, dp);
            let share = Cell::Percent(states / capacity);
            let answer = if states <= capacity { "yes" } else { "no" };
            table.rows.push(Row::new([
                stage.name().into(),
                states.into(),
                share,
                answer.into(),
                divided(*stage).into(),
            ]));
            stages.push(
                Value::map().with("zero", *stage as u8).with("states_bytes", states).with("fits", states <= capacity),
            );
        }
        report.blocks.push(table.into());
        report.result = Value::map()
            .with("fits", fits)
            .with("states_bytes", states)
            .with("gathered_bytes", gathered)
            .with("capacity_bytes", capacity)
            .with("by_zero", Value::List(stages));
        match bytes {
            StateBytes::Each(each, _) => report.result.insert("bytes_per_parameter", per_parameter(each)),
            StateBytes::Whole(all) => report.result.insert("bytes", whole(all)),
        }
        if let Some(stage) = Zero::ALL.iter().find(|stage| bytes.on_device(**stage, dp) <= capacity)
            && !fits
        {
            report.notes.push(phrase!["--zero ", stage.name(), " is the first stage of which the states fit"]);
        }
        let n = Cell::Exact(u128::from(parameters.get()));
        let (id, substituted) = match bytes {
            StateBytes::Each(each, _) => {
                let (r, q) = (each.replicated(zero), each.sharded(zero));
                ("zero", phrase![n.clone(), " × ", r, " + ", n, " × ", q, " ÷ ", dp])
            }
            StateBytes::Whole(all) => {
                let exact = |bytes: u64| Cell::Exact(u128::from(bytes));
                ("zero-whole", phrase![exact(all.replicated(zero)), " + ", exact(all.sharded(zero)), " ÷ ", dp])
            }
        };
        let formula = known(id);
        report.derivations.push(Derivation {
            of: "states".to_owned(),
            formula: id,
            expression: formula.expression.to_owned(),
            substituted,
            result: states.into(),
            source: formula.source.to_owned(),
            anchor: formula.anchor,
        });
        Ok(report)
    }

    /// What one device gathers at a time, if that is asked for and parameters are divided.
    fn gathered(&self, subject: &Subject) -> Result<Option<Bytes>, Diagnostic> {
        let Some(unit) = self.unit.filter(|_| self.zero.value == Zero::Parameters && self.devices.value > 1) else {
            return Ok(None);
        };
        let recipe = self.recipe.value;
        let bytes = |unit: &[&ParamInfo]| weight_bytes(unit, recipe) + gradient_bytes(unit, recipe);
        Ok(Some(match (unit, subject.blocks) {
            (Wrap::Model, Some(_)) => Bytes(bytes(&subject.tensors.iter().collect::<Vec<_>>())),
            (Wrap::Model, None) => {
                let each = recipe.gathered_dtype().size_in_bytes() + recipe.grad_dtype().size_in_bytes();
                subject.parameters * Bytes(each)
            }
            (Wrap::Block, Some(blocks)) => {
                let units = blocks.units(&subject.tensors);
                Bytes(bytes(&units.root) + units.blocks.values().map(|unit| bytes(unit)).max().unwrap_or(0))
            }
            (Wrap::Block, None) => {
                return Err(Diagnostic::error("", "--fsdp-unit block: a bare count has no blocks")
                    .help("give a config or a preset")
                    .help("--fsdp-unit model"));
            }
        }))
    }

    fn per_parameter_row(&self, bytes: ParameterBytes) -> KeyValue {
        let note = phrase![bytes.sum_text(), "   (", self.recipe.value.name(), ", ", self.optimizer.value.name(), ")"];
        KeyValue::new("per parameter", Bytes(bytes.total())).note(note)
    }

    fn bytes_row(&self, bytes: StateBytes) -> KeyValue {
        match bytes {
            StateBytes::Each(each, _) => self.per_parameter_row(each),
            StateBytes::Whole(all) => {
                let note = phrase!["by shape   (", self.recipe.value.name(), ", ", self.optimizer.value.name(), ")"];
                KeyValue::new("optimizer states", Bytes(all.optimizer)).note(note)
            }
        }
    }

    fn assumptions(&self) -> Vec<Assumption> {
        let mut all = vec![
            Assumption::new("devices", "devices", self.devices.value, self.devices.origin()).flag("--devices"),
            Assumption::new("precision", "precision", self.recipe.value.name(), self.recipe.origin())
                .flag("--precision"),
            Assumption::new("optimizer", "optimizer", self.optimizer.value.name(), self.optimizer.origin())
                .flag("--optimizer"),
            Assumption::new("zero", "zero", self.zero.value.name(), self.zero.origin()).flag("--zero"),
        ];
        all.retain(|one| one.from != Origin::Given);
        let why = phrase!["no activations, gathered weights, workspaces or runtime"];
        all.push(
            Assumption::new("states_only", "states only", Cell::Empty, Origin::Given).why(why).flag("--states-only"),
        );
        if let Some(copies) = self.recipe.value.copies() {
            let why = phrase!["16-bit copies live only while a block computes and are not counted"];
            let bytes = Bytes(copies.size_in_bytes());
            all.push(Assumption::new("working_copy_bytes", "copies", bytes, Origin::Derived).why(why));
        }
        all
    }
}

fn per_parameter(bytes: ParameterBytes) -> Value {
    let slots = bytes.slots.iter().map(|name| ((*name).to_owned(), Value::from(bytes.slot)));
    Value::map()
        .with("parameter", bytes.parameter)
        .with("gradient", bytes.gradient)
        .with("master", bytes.master)
        .with("optimizer", Value::Map(slots.collect()))
        .with("total", bytes.total())
}

fn whole(bytes: ModelBytes) -> Value {
    Value::map()
        .with("parameters", bytes.parameters)
        .with("gradients", bytes.gradients)
        .with("masters", bytes.masters)
        .with("optimizer_states", bytes.optimizer)
        .with("total", bytes.total())
}

const fn divided(zero: Zero) -> &'static str {
    match zero {
        Zero::None => "nothing",
        Zero::States => "optimizer states, master copies",
        Zero::Gradients => "and gradients",
        Zero::Parameters => "and parameters",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;

    fn request(recipe: Precision, zero: Zero) -> StatesRequest {
        StatesRequest {
            memory: Memory::Of(Box::new(hardware::find("h100-sxm").unwrap().clone())),
            devices: Choice::or(Some(8), 1),
            recipe: Choice::or(Some(recipe), Precision::Fp32),
            optimizer: Choice::or(None, Kind::AdamW),
            zero: Choice::or(Some(zero), Zero::None),
            unit: None,
            subject: None,
        }
    }

    fn uint(report: &Report, name: &str) -> u128 {
        report.result.get(name).and_then(Value::as_uint).unwrap()
    }

    /// The lecture question: 8 × 80 GB hold 40 B parameters with AdamW, in fp32 and in bf16 with master weights alike.
    #[test]
    fn eight_devices_hold_forty_billion() {
        for recipe in [Precision::Fp32, Precision::Bf16Master] {
            let report = request(recipe, Zero::Parameters).report().unwrap();
            assert_eq!(uint(&report, "parameters_nominal"), 40_000_000_000);
            assert_eq!(uint(&report, "parameters"), 42_760_404_992);
        }
        let given =
            StatesRequest { memory: Memory::Given(Bytes::gb(80)), ..request(Precision::Fp32, Zero::Parameters) };
        assert_eq!(uint(&given.report().unwrap(), "parameters"), 40_000_000_000);
        let alone = request(Precision::Fp32, Zero::None).report().unwrap();
        assert_eq!(uint(&alone, "parameters_nominal"), 5_000_000_000);
    }

    /// plan-07: only full sharding can fit.
    #[test]
    fn a_model_is_held_against_every_stage() {
        let mut request = request(Precision::Bf16Master, Zero::Gradients);
        let (name, parameters) = ("dense:23572403200".to_owned(), Params(23_572_403_200));
        request.subject =
            Some(Subject { name, parameters, tensors: Vec::new(), blocks: None, tuning: Tuning::default() });
        let report = request.report().unwrap();
        assert_eq!(report.verdict, Verdict::No);
        assert_eq!(uint(&report, "states_bytes"), 88_396_512_000);
        let Some(Value::List(stages)) = report.result.get("by_zero") else { panic!("no stages") };
        let fits: Vec<_> = stages.iter().map(|stage| stage.get("fits").cloned()).collect();
        assert_eq!(fits, [false, false, false, true].map(|fits| Some(Value::Bool(fits))));
    }

    /// parallel-05: what is gathered at a time decides whether dividing parameters saves anything.
    #[test]
    fn one_unit_for_the_whole_model_saves_little() {
        let mut request = request(Precision::Fp32, Zero::Parameters);
        request.devices = Choice::or(Some(2), 1);
        let (name, parameters) = ("dense:1437M".to_owned(), Params(1_437_000_000));
        request.subject =
            Some(Subject { name, parameters, tensors: Vec::new(), blocks: None, tuning: Tuning::default() });
        let gib = |report: &Report, key: &str| Bytes(uint(report, key) as u64).as_gib();
        let near = |is: f64, right: f64| assert!((is / right - 1.0).abs() < 0.02, "{is} is not {right}");
        near(gib(&request.report().unwrap(), "states_bytes"), 10.7);
        request.unit = Some(Wrap::Model);
        let whole = request.report().unwrap();
        near(gib(&whole, "gathered_bytes"), 5.4 + 5.4);
        near(gib(&whole, "states_bytes"), 21.4);
        // A bare count has no blocks; a model has.
        request.unit = Some(Wrap::Block);
        assert!(request.report().is_err());
        let tensor = |name: &str, elements| ParamInfo {
            name: name.to_owned(),
            shape: vec![elements],
            elements,
            kind: nn::ParamKind::Vector,
            tied: Vec::new(),
            trainable: true,
            replicated: false,
            share: nn::Share::Whole,
            packed_bytes: None,
        };
        let tensors = vec![tensor("embed.weight", 100), tensor("layers.0.w", 7), tensor("layers.1.w", 9)];
        let blocks = Some(Blocks::of(&nn::spec::ModelNames::default()));
        let (name, parameters) = ("small".to_owned(), Params(116));
        request.subject = Some(Subject { name, parameters, tensors, blocks, tuning: Tuning::default() });
        assert_eq!(uint(&request.report().unwrap(), "gathered_bytes"), 8 * 109);
        // A number in the name of what is no block makes none of it, and what is not trained has no gradients.
        let subject = request.subject.as_mut().unwrap();
        subject.tensors[0].name = "proj.0.weight".to_owned();
        subject.tensors[0].trainable = false;
        assert_eq!(uint(&request.report().unwrap(), "gathered_bytes"), 8 * 9 + 4 * 100);
    }

    /// A bare count has no shapes, and a rule that asks for them says so.
    #[test]
    fn states_by_shape_need_a_model() {
        let optimizer = Choice::or(Some(Kind::Muon), Kind::AdamW);
        let problems = StatesRequest { optimizer, ..request(Precision::Fp32, Zero::None) }.report().unwrap_err();
        assert!(problems.to_string().contains("the states of `muon` depend on the shapes"), "{problems}");
    }
}
