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
//! | `tokenizer.rs` | text to ids and back |
//! | `pieces.rs` | where a text may be cut |
//! | `tokenize.rs` | texts to a token file |
//! | `inspect.rs` | what is in a file of tokens, and what is wrong with it |
//! | `report.rs` | both for people |
//! | `prefetch.rs` | the thread that reads ahead |
//! | `builtin.rs` | the text in the program |
//! | `error.rs` | what can be wrong with data |

mod batch;
mod builtin;
mod error;
pub(crate) mod format;
mod id_type;
mod inspect;
mod map;
mod npy;
mod pieces;
mod prefetch;
mod report;
mod sampler;
mod span;
mod token_file;
mod tokenize;
mod tokenizer;
mod writer;

pub use batch::{Batch, Loader};
pub use builtin::BUILTIN_NAME;
pub use error::DataError;
pub use format::{Format, Vocabulary};
pub use id_type::IdType;
pub use inspect::{Inspect, Inspection, Reading};
pub use prefetch::{Fetched, Prefetch, PrefetchCost};
pub use sampler::{Order, Position, Sampler};
pub use span::Span;
pub use token_file::{OpenOptions, TokenFile};
pub use tokenize::{PIECE_BYTES, Progress, Tokenize, Tokenized};
pub use tokenizer::{BlankTooLong, Tokenizer};
pub use writer::TokenWriter;
