//! How long a training step of many devices takes: links, collectives, ops, the pipeline, the step.
//!
//! Inputs are plain numbers and lists of what one rank does, which a trace or a closed form fills. Constants stand in
//! `data/time` and `data/network`, each with its kind and its source.
//!
//! | module | answers |
//! |---|---|
//! | [`topology`] | which links a group of ranks talks over |
//! | [`collective_time`] | how long a collective takes over them |
//! | [`op_time`] | how long one op takes on one device |
//! | [`pipeline`] | how long a pipeline takes, who waits, what it holds |
//! | [`machine`] | how long a list of what a rank does takes |
//! | [`step`] | how long a step takes, line by line |
//! | [`traced`] | what a rank did in a trace |
//! | [`shape`], [`experts`], [`published`] | what a rank does for models of published measurements, in closed form |
//! | [`accuracy`] | how far that is from what was measured |
//! | [`constants`], [`network`] | which numbers that rests on, and who says so |

pub mod accuracy;
pub mod collective_time;
pub mod constants;
pub mod experts;
pub mod machine;
pub mod network;
pub mod op_time;
pub mod pipeline;
pub mod published;
pub mod shape;
pub mod step;
pub mod topology;
pub mod traced;
