//! Checkpoints: tensors in safetensors and one manifest.
