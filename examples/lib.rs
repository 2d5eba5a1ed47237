//! The exercises of the course, as programs: `cargo run --release --example NAME`.
//!
//! | example | what it shows |
//! |---|---|
//! | `strides` | shared storage, views, copies and what they cost |
//! | `deep_linear` | the deep linear model: its bytes, its FLOP, and every optimizer at work |
//! | `ledger` | the memory of a real configuration, predicted and measured |
//! | `einops_attention` | attention in named axes, equal to the fused kernel |
//! | `mfu` | how much of this machine's peak a matrix product reaches, in two dtypes |
//!
//! Each checks what it claims: a wrong number ends it with an error.
