//! What training costs: analyses of a traced model on given hardware, as plain data.
//!
//! An analysis takes a typed request and gives a [`report::Report`], or all that is wrong with the request. Nothing here
//! reads a clock or a file; renderers only format.
//!
//! | module | answers |
//! |---|---|
//! | [`time`] | how long, at which utilization, for how much |
//! | [`wall`] | what there is around the steps of a run: data, evaluations, saves, failures |
//! | [`mfu`] | which utilization a measured speed is |
//! | [`cluster`] | how long a step of many devices takes |
//! | [`layout`] | how a run is divided over devices, and what is legal |
//! | [`handover`] | layouts to and from the engines people run |
//! | [`log_mfu`], [`step_log`] | the same of the log of a run |
//! | [`allocator`] | what PyTorch's caching allocator reserves for a step |
//! | [`oom`] | what an out-of-memory message says, and what frees enough |
//! | [`levers`] | which changes of a step lower its peak |
//! | [`afford`] | the model that a budget trains best, by published scaling laws |
//! | [`fit`] | what the states of a model need, and the largest that fits |
//! | [`dtype_report`], [`einsum_report`], [`hw_report`] | number formats, einsums, the hardware table |
//! | [`explain`] | a formula with its source |
//! | [`snapshot`] | what lies between a prediction and a memory snapshot of PyTorch |
//! | [`reconcile`] | what lies between a prediction and a run of it |
//! | [`inference`] | what weights, keys and values take, how many sequences fit, how long a token takes |
//! | [`quant`] | number formats of weights and caches, constants included |
//! | [`states`] | bytes of parameters, gradients and optimizer states |
//! | [`hardware`] | what an accelerator can do, and who says so |
//! | [`validation`] | how far predictions are from published measurements |
//! | [`formulas`] | the closed forms of the field, as cross-checks |
//! | [`report`] | the form of every answer |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod afford;
pub mod allocator;
pub mod catalogue;
mod charts;
pub mod cluster;
pub mod compare;
pub mod dtype_report;
pub mod einsum_report;
pub mod evidence;
pub mod explain;
pub mod filling;
pub mod fit;
pub mod fleet;
pub mod flops;
pub mod formulas;
pub mod frontier;
pub mod ggml;
pub mod handover;
pub mod hardware;
pub mod hw_report;
pub mod inference;
pub mod largest;
pub mod layout;
pub mod ledger;
pub mod levers;
pub mod log_mfu;
pub mod mfu;
pub mod model;
pub mod nearest;
pub mod on_device;
pub mod oom;
mod parallel;
pub mod params;
pub mod presets;
pub mod progress;
pub mod quant;
pub mod ranks;
pub mod reconcile;
pub mod report;
pub mod runtime;
pub mod scaling;
mod section;
pub mod sharding;
pub mod snapshot;
pub mod states;
pub mod step_log;
pub mod step_timeline;
pub mod summary;
pub mod time;
pub mod timeline;
pub mod tuning;
pub mod validation;
pub mod wall;
pub mod work;
