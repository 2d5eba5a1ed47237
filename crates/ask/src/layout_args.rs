//! Flags of a run that is divided over devices: whose configuration says how, and what is between its nodes.

use std::str::FromStr;

use clap::Args;
use plan::cluster::network::{self, NetworkKind};
use plan::handover::{self, Around, Engine, Taken};
use plan::model::Model;
use plan::report::Origin;
use units::Diagnostic;

use crate::parse::{Reader, some};
use crate::step::word;
use crate::text;

/// Longest configuration of an engine that is read.
const MOST_BYTES: usize = 1 << 20;

/// The configuration of an engine that says how a run is divided.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Layout of an engine")]
pub struct FromArgs {
    /// Take the layout from Megatron-LM's arguments: a script, or the arguments themselves in quotes
    #[arg(long = "from-megatron-args", value_name = "FILE|ARGS", group = "from", allow_hyphen_values = true)]
    pub megatron_args: Option<String>,
    /// Take the layout from a TOML file of torchtitan
    #[arg(long = "from-torchtitan", value_name = "FILE", group = "from")]
    pub torchtitan: Option<String>,
    /// Take the layout from a JSON file of `DeepSpeed`
    #[arg(long = "from-deepspeed", value_name = "FILE", group = "from")]
    pub deepspeed: Option<String>,
    /// Take the layout from a YAML file of accelerate with FSDP
    #[arg(long = "from-fsdp", value_name = "FILE", group = "from")]
    pub fsdp: Option<String>,
    /// Take the layout from a YAML file of nanotron
    #[arg(long = "from-nanotron", value_name = "FILE", group = "from")]
    pub nanotron: Option<String>,
}

impl FromArgs {
    /// Whose configuration is given, and where it is.
    fn source(&self) -> Option<(Engine, &str)> {
        let files = [
            (Engine::Megatron, &self.megatron_args),
            (Engine::Torchtitan, &self.torchtitan),
            (Engine::DeepSpeed, &self.deepspeed),
            (Engine::Fsdp, &self.fsdp),
            (Engine::Nanotron, &self.nanotron),
        ];
        files.into_iter().find_map(|(engine, file)| Some((engine, file.as_deref()?)))
    }

    /// Whose configuration is given.
    pub fn engine(&self) -> Option<Engine> {
        Some(self.source()?.0)
    }

    /// The layout that is in it, for a model on so many devices.
    pub fn read(&self, read: &mut Reader<'_>, model: Option<&Model>, devices: Option<u64>) -> Option<Taken> {
        let (engine, source) = self.source()?;
        // A script is a file; arguments begin as arguments do.
        let (file, text) = if engine == Engine::Megatron && source.trim_start().starts_with("--") {
            ("--from-megatron-args", source.to_owned())
        } else {
            (source, read.take(text::load(read.files(), source, MOST_BYTES, false))?)
        };
        let around = Around { file, model: &model?.spec, devices };
        read.take_all(handover::read(engine, &text, &around))
    }
}

/// The nodes of a cluster and what is between them.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// What is between nodes: infiniband-ndr, efa-p5, ... [default: infiniband-ndr]
    #[arg(long, value_name = "NAME")]
    pub network: Option<String>,
    /// Devices of a node [default: 8]
    #[arg(long, value_name = "N")]
    pub devices_per_node: Option<String>,
}

impl ClusterArgs {
    /// Its flags, each with whether it was given.
    pub const fn given(&self) -> [(&'static str, bool); 2] {
        [("--network", self.network.is_some()), ("--devices-per-node", self.devices_per_node.is_some())]
    }

    /// Refuses nodes that are not all full.
    pub fn whole_nodes(&self, read: &mut Reader<'_>, devices: u64) {
        let per_node = self.devices_per_node.as_deref().and_then(|text| some(text).ok()).unwrap_or(1);
        if devices > per_node && !devices.is_multiple_of(per_node) {
            let (below, above) = (devices / per_node * per_node, devices.next_multiple_of(per_node));
            let problem = Diagnostic::error("T0480", format!("{devices} devices are not whole nodes of {per_node}"));
            read.problem(problem.help(format!("-n {below}, -n {above}, or another --devices-per-node")));
        }
    }

    /// The network, and devices of a node.
    pub fn read(&self, read: &mut Reader<'_>) -> Option<(&'static NetworkKind, u64)> {
        let per_node = read.flag_with("--devices-per-node", self.devices_per_node.as_deref(), some);
        let network = read.take(network::find(self.network.as_deref().unwrap_or(network::USUAL)))?;
        Some((network, per_node.unwrap_or(8)))
    }
}

/// Puts what a flag says over what there is.
pub fn over<T: FromStr<Err = String>>(read: &mut Reader<'_>, flag: &str, text: Option<&str>, value: &mut T) {
    if let Some(given) = word::<T>(read, flag, text) {
        *value = given;
    }
}

/// What a flag says, or a file, or what is usual; and which of them.
pub fn first<T>(flag: Option<T>, file: Option<T>, usual: T) -> (T, Origin) {
    match (flag, file) {
        (Some(value), _) => (value, Origin::Given),
        (None, Some(value)) => (value, Origin::File),
        (None, None) => (usual, Origin::Default),
    }
}
