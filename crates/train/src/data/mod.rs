//! Token data: files, tokenizers, samplers.
