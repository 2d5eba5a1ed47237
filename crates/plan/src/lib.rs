//! TODO

pub mod hardware;
