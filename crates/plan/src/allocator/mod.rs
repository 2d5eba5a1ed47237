//! PyTorch's CUDA caching allocator, simulated: which segments a step reserves, and how much of them it can use.
//!
//! What a program allocates is one number, what the allocator reserves for it another, and what the process takes of the
//! device a third. The first is counted exactly by the [timeline](crate::timeline). The second follows from it by the
//! rules of the allocator, which are deterministic: the same requests in the same order meet the same free blocks. The
//! simulation follows its source function by function, and gives the same counters on the same requests
//! (`tests/allocator`, where PyTorch's own allocator runs on a driver without a device).
//!
//! | module | holds |
//! |---|---|
//! | `size` | roundings |
//! | `conf` | settings (`PYTORCH_CUDA_ALLOC_CONF`) |
//! | `device` | the allocator |
//! | `replay` | the steps of a trace, given to it |

mod conf;
mod device;
mod replay;
mod size;

pub use conf::Conf;
pub use device::{Allocator, BlockId, OutOfMemory, Usage};
pub use replay::{Beside, Process, Refused, Reserved};
pub use size::{BLOCK_STEP, LARGE, MIDDLE_SEGMENT, SEGMENT_STEP, SMALL, SMALL_SEGMENT, block, segment};
