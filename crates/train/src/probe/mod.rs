//! What the operating system knows of this machine and this process. `None` where it does not say.

pub mod cpu;
pub mod date;
pub mod heap;
pub mod mappings;
pub mod memory;
