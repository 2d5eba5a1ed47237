//! What training costs: analyses of a traced model on given hardware, as plain data.
//!
//! An analysis takes a typed request and gives a [`report::Report`], or all that is wrong with the request. Nothing here
//! reads a clock or a file; renderers only format.
//!
//! | module | answers |
//! |---|---|
//! | [`time`] | how long, at which utilization, for how much |
//! | [`states`] | bytes of parameters, gradients and optimizer states |
//! | [`hardware`] | what an accelerator can do, and who says so |
//! | [`formulas`] | the closed forms of the field, as cross-checks |
//! | [`report`] | the form of every answer |

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod fleet;
pub mod formulas;
pub mod hardware;
pub mod flops;
pub mod largest;
pub mod ledger;
pub mod model;
pub mod nearest;
pub mod params;
pub mod presets;
pub mod report;
pub mod scaling;
pub mod sharding;
pub mod states;
pub mod summary;
pub mod time;
pub mod work;
pub mod timeline;
