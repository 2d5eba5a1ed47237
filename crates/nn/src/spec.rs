//! What a model is made of, as data: the meeting point of family files and modules.
//!
//! A family file turns the keys of its `config.json` into a [`ModelSpec`] and does nothing else; [`crate::model`] builds
//! modules from it. Sizes are exact element counts; names are the module names of the checkpoint format the family uses.

mod attention;
mod compressed;
mod embedding;
mod layer;
mod linear;
mod mixers;
mod mlp;
mod model;
mod moe;
mod norm;
mod patches;
mod projection;
mod rotary;
mod sequence;
mod share;
mod stage;
mod tuning;

pub use attention::{AttentionSpec, AttentionSteps, BiasSource, CrossSpec, KvSharing, RelativeSpec};
pub use compressed::{BlocksSpec, CompressedSpec, HyperSpec};
pub use embedding::{
    EmbeddingSpec, LeadingSpec, PositionForm, PositionTable, SharedTable, SignalSpec, SourceSpec, TypeTable,
};
pub use layer::{BlockForm, InputSpec, LayerNames, LayerSpec, Mixer, UpdatesSpec};
pub use linear::{LinearSpec, MapSpec};
pub use mixers::{
    BranchSpec, ConvSpec, DeltaMaps, DeltaSpec, DistanceSpec, GateOrder, GatedNormSpec, HybridSpec, LightningSpec,
    Mamba2Spec, MambaNorms, MambaSpec, MlstmSpec, ParallelSpec, RgLruSpec, ShortConvSpec, TimeMixSpec,
};
pub use mlp::{Activation, FeedForwardSpec, MlpInput, MlpSpec};
pub use model::{BufferSpec, CountedSpec, HeadSpec, ModelNames, ModelSpec, StackSpec, Task, TowerSpec};
pub use moe::{
    BesideSpec, Correction, ExpertGate, ExpertGroups, ExpertLayout, LatentExperts, MoeSpec, RouterSpec, Scores,
    SharedSpec,
};
pub use norm::{NamedNorm, NormKind, NormSpec, QkNorm, QkNormPlace};
pub use patches::{HashSpec, PatchAttentionSpec, PatchSpec};
pub use projection::{FusedOrder, IndexerSpec, LatentSpec, Projection, RoutedSpec};
pub use rotary::{RotaryForm, RotaryJoin, RotaryPrecision, RotarySpec};
pub use sequence::{Conv1dSpec, Piece, PoolSpec, Sequence};
pub use stage::{Ends, Stage};
pub use tuning::{Lora, Pattern, StackTarget, Targets, Tuning};
