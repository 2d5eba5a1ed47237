//! How long a training step of many devices takes: links, collectives, ops, the pipeline, the step, the run.
//!
//! | module | answers |
//! |---|---|
//! | [`collective_time`] | how long a collective takes over them |
//! | [`pipeline`] | how long a pipeline takes, who waits, what it holds |
//! | [`topology`] | which links a group of ranks talks over |

pub mod collective_time;
pub mod pipeline;
pub mod topology;
