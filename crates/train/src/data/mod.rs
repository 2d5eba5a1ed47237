//! Token data: files, tokenizers, samplers, batches.
//!
//! | file | noun |
//! |---|---|
//! | `id_type.rs` | how one id is stored |
//! | `format.rs` | what a file is and where its ids begin |
//! | `npy.rs` | the header of a NumPy array |
//! | `token_file.rs` | ids in a mapped file |
//! | `writer.rs` | a token file in the making |
//! | `span.rs` | a part of a token file: training or validation |
//! | `sampler.rs` | which window is the `n`-th sample |
//! | `batch.rs` | several windows, as the model takes them |
//! | `prefetch.rs` | the thread that reads ahead |
//! | `builtin.rs` | the text in the program |
//! | `error.rs` | what can be wrong with data |

mod batch;
mod builtin;
mod error;
mod format;
mod id_type;
mod map;
mod npy;
mod prefetch;
mod sampler;
mod span;
mod token_file;
mod writer;

pub use batch::{Batch, Loader};
pub use builtin::BUILTIN_NAME;
pub use error::DataError;
pub use format::{Format, Vocabulary};
pub use id_type::IdType;
pub use prefetch::{Fetched, Prefetch, PrefetchCost};
pub use sampler::{Order, Position, Sampler};
pub use span::Span;
pub use token_file::{OpenOptions, TokenFile};
pub use writer::TokenWriter;
