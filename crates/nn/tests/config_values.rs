//! What is said about keys and values that cannot be used as they are, word for word.

mod support;

use support::said;

/// Name, text, what is said.
const CASES: &[(&str, &str, &str)] = &[
    (
        "missing and misspelt",
        r#"{
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true,
  "hiden_size": 64
}
"#,
        r#"error[T0201]: `hidden_size` is missing, and so is `n_embd`
  --> config.json:1:1
   |
 1 | {
   | ^
 9 |   "hiden_size": 64
   |   ------------ is this it?
   |
   = why: no default would be safe
   = try: rename `hiden_size` to `hidden_size`
   = try: --set hidden_size=..."#,
    ),
    (
        "null where needed",
        r#"{
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": null,
  "tie_word_embeddings": true
}
"#,
        r#"error[T0201]: `vocab_size` is null
  --> config.json:8:17
   |
 8 |   "vocab_size": null,
   |                 ^^^^
   |
   = why: no default would be safe
   = try: --set vocab_size=..."#,
    ),
    (
        "heads that do not divide",
        r#"{
  "hidden_size": 4096,
  "num_hidden_layers": 2,
  "num_attention_heads": 32,
  "num_key_value_heads": 5,
  "head_dim": 128,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true
}
"#,
        r#"error[T0203]: `num_attention_heads` is not divisible by `num_key_value_heads`
  --> config.json:5:26
   |
 4 |   "num_attention_heads": 32,
   |                          -- 32 query heads
 5 |   "num_key_value_heads": 5,
   |                          ^ 5 key/value heads
   |
   = why: each key/value head serves an equal number of query heads
   = try: --set num_key_value_heads=8   (valid: 1, 2, 4, 8, 16, 32)"#,
    ),
    (
        "negative, zero, fraction, not finite",
        r#"{
  "hidden_size": -64,
  "num_hidden_layers": 0,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": NaN,
  "intermediate_size": 128.5,
  "vocab_size": 1e400,
  "tie_word_embeddings": true
}
"#,
        r#"warning[T0110]: `NaN` is not a JSON number
  --> config.json:6:15
   |
 6 |   "head_dim": NaN,
   |               ^^^
   |
   = effect: kept as it stands; an error only if a size or a rate that costs anything uses it

error[T0204]: `hidden_size` is negative
  --> config.json:2:18
   |
 2 |   "hidden_size": -64,
   |                  ^^^ -64
   |
   = why: expected a positive whole number
   = try: --set hidden_size=...

error[T0204]: `num_hidden_layers` is zero
  --> config.json:3:24
   |
 3 |   "num_hidden_layers": 0,
   |                        ^ 0
   |
   = why: expected a positive whole number
   = try: --set num_hidden_layers=...

error[T0204]: `head_dim` is `NaN`
  --> config.json:6:15
   |
 6 |   "head_dim": NaN,
   |               ^^^ NaN
   |
   = why: expected a positive whole number
   = try: --set head_dim=...

error[T0204]: `intermediate_size` is not a whole number
  --> config.json:7:24
   |
 7 |   "intermediate_size": 128.5,
   |                        ^^^^^ 128.5
   |
   = why: expected a positive whole number
   = try: --set intermediate_size=...

error[T0204]: `vocab_size` is too large
  --> config.json:8:17
   |
 8 |   "vocab_size": 1e400,
   |                 ^^^^^ 1e400
   |
   = why: expected at most 2^40 = 1,099,511,627,776
   = try: --set vocab_size=..."#,
    ),
    (
        "absurdly large",
        r#"{
  "hidden_size": 123456789012345678901234567890,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 1099511627777,
  "tie_word_embeddings": true
}
"#,
        r#"error[T0204]: `hidden_size` is too large
  --> config.json:2:18
   |
 2 |   "hidden_size": 123456789012345678901234567890,
   |                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ 123456789012345678901234567890
   |
   = why: expected at most 2^40 = 1,099,511,627,776
   = try: --set hidden_size=...

error[T0204]: `vocab_size` is too large
  --> config.json:8:17
   |
 8 |   "vocab_size": 1099511627777,
   |                 ^^^^^^^^^^^^^ 1099511627777
   |
   = why: expected at most 2^40 = 1,099,511,627,776
   = try: --set vocab_size=..."#,
    ),
    (
        "a product beyond 2^62",
        r#"{
  "hidden_size": 1099511627776,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 1099511627776,
  "tie_word_embeddings": true
}
"#,
        r#"error[T0205]: the embedding table is beyond 2^62: `vocab_size` x `hidden_size`
  --> config.json:8:17
   |
 2 |   "hidden_size": 1099511627776,
   |                  ------------- 1099511627776
 8 |   "vocab_size": 1099511627776,
   |                 ^^^^^^^^^^^^^ 1099511627776
   |
   = why: 1099511627776 x 1099511627776 is more than any memory holds
   = try: correct the largest of them"#,
    ),
    (
        "wrong kinds",
        r#"{
  "hidden_size": [64],
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": "32.000",
  "vocab_size": "many",
  "tie_word_embeddings": "yes"
}
"#,
        r#"error[T0202]: `hidden_size` is a list
  --> config.json:2:18
   |
 2 |   "hidden_size": [64],
   |                  ^^^^ [64]
   |
   = why: expected a positive whole number
   = try: --set hidden_size=...

error[T0202]: `intermediate_size` is a string that is not a number
  --> config.json:7:24
   |
 7 |   "intermediate_size": "32.000",
   |                        ^^^^^^^^ "32.000"
   |
   = why: expected a positive whole number
   = try: --set intermediate_size=...

error[T0202]: `vocab_size` is a string that is not a number
  --> config.json:8:17
   |
 8 |   "vocab_size": "many",
   |                 ^^^^^^ "many"
   |
   = why: expected a positive whole number
   = try: --set vocab_size=...

error[T0202]: `tie_word_embeddings` is a string
  --> config.json:9:26
   |
 9 |   "tie_word_embeddings": "yes"
   |                          ^^^^^ "yes"
   |
   = why: expected true or false
   = try: --set tie_word_embeddings=..."#,
    ),
    (
        "numbers as strings",
        r#"{
  "model_type": "llama",
  "hidden_size": "2048",
  "num_hidden_layers": "22",
  "num_attention_heads": "32",
  "num_key_value_heads": "4",
  "intermediate_size": "5632",
  "vocab_size": "32,000",
  "tie_word_embeddings": "false",
  "torch_dtype": "torch.bfloat16"
}
"#,
        r#"warning[T0113]: `hidden_size` is a string: "2048"
  --> config.json:3:18
   |
 3 |   "hidden_size": "2048",
   |                  ^^^^^^
   |
   = effect: read as 2048
   = try: write 2048

warning[T0113]: `num_hidden_layers` is a string: "22"
  --> config.json:4:24
   |
 4 |   "num_hidden_layers": "22",
   |                        ^^^^
   |
   = effect: read as 22
   = try: write 22

warning[T0113]: `num_attention_heads` is a string: "32"
  --> config.json:5:26
   |
 5 |   "num_attention_heads": "32",
   |                          ^^^^
   |
   = effect: read as 32
   = try: write 32

warning[T0113]: `num_key_value_heads` is a string: "4"
  --> config.json:6:26
   |
 6 |   "num_key_value_heads": "4",
   |                          ^^^
   |
   = effect: read as 4
   = try: write 4

warning[T0113]: `intermediate_size` is a string: "5632"
  --> config.json:7:24
   |
 7 |   "intermediate_size": "5632",
   |                        ^^^^^^
   |
   = effect: read as 5632
   = try: write 5632

warning[T0113]: `vocab_size` is a string: "32,000"
  --> config.json:8:17
   |
 8 |   "vocab_size": "32,000",
   |                 ^^^^^^^^
   |
   = effect: read as 32000
   = try: write 32000

warning[T0113]: `tie_word_embeddings` is a string: "false"
  --> config.json:9:26
   |
 9 |   "tie_word_embeddings": "false",
   |                          ^^^^^^^
   |
   = effect: read as false
   = try: write false"#,
    ),
    (
        "keys twice",
        r#"{
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true
, "vocab_size": 200 }
"#,
        r#"warning[T0109]: `vocab_size` is given twice
  --> config.json:10:3
   |
 8 |   "vocab_size": 100,
   |   ------------ also here
10 | , "vocab_size": 200 }
   |   ^^^^^^^^^^^^
   |
   = effect: the last value is used
   = try: delete the other one"#,
    ),
    (
        "two names that disagree",
        r#"{
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true,
  "n_embd": 32
}
"#,
        r#"warning[T0208]: `hidden_size` is 64, but `n_embd` is 32
  --> config.json:2:18
   |
 2 |   "hidden_size": 64,
   |                  ^^
10 |   "n_embd": 32
   |             -- not used
   |
   = why: both keys name the same quantity
   = effect: `hidden_size` is used"#,
    ),
    (
        "unknown keys",
        r#"{
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true,
  "num_key_value_head": 2,
  "engram_layers": [3, 5, 7],
  "use_cache": true,
  "attention_dropout": 0.0,
  "hidden_dropout": 0.1
}
"#,
        r#"warning[T0118]: `num_key_value_head` = 2 is not understood
  --> config.json:9:3
   |
 9 |   "num_key_value_head": 2,
   |   ^^^^^^^^^^^^^^^^^^^^
   |
   = effect: not counted; if it changes the model, the numbers are those of the model without it
   = try: did you mean `num_key_value_heads`?

warning[T0118]: `engram_layers` = [3 .. 7] (3 items) is not understood
  --> config.json:10:3
   |
10 |   "engram_layers": [3, 5, 7],
   |   ^^^^^^^^^^^^^^^
   |
   = effect: not counted; if it changes the model, the numbers are those of the model without it

warning[T0118]: `hidden_dropout` = 0.1 is not understood
  --> config.json:13:3
   |
13 |   "hidden_dropout": 0.1
   |   ^^^^^^^^^^^^^^^^
   |
   = effect: not counted; if it changes the model, the numbers are those of the model without it"#,
    ),
    (
        "dtypes that disagree",
        r#"{
  "hidden_size": 64,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 4,
  "head_dim": 16,
  "intermediate_size": 128,
  "vocab_size": 100,
  "tie_word_embeddings": true,
  "dtype": "bfloat16",
  "torch_dtype": "float16"
}
"#,
        r#"warning[T0208]: `dtype` is "bfloat16", but `torch_dtype` is "float16"
  --> config.json:10:12
   |
10 |   "dtype": "bfloat16",
   |            ^^^^^^^^^^
11 |   "torch_dtype": "float16"
   |                  --------- not used
   |
   = why: both keys name the same quantity
   = effect: `dtype` is used"#,
    ),
    (
        "old names",
        r#"{
  "n_embd": 96,
  "n_layer": "x",
  "n_head": 12,
  "num_key_value_heads": 5,
  "vocab_size": 10,
  "tie_word_embeddings": true
}
"#,
        r#"error[T0202]: `n_layer` is a string that is not a number
  --> config.json:3:14
   |
 3 |   "n_layer": "x",
   |              ^^^ "x"
   |
   = why: expected a positive whole number
   = try: --set n_layer=...

error[T0203]: `num_attention_heads` is not divisible by `num_key_value_heads`
  --> config.json:5:26
   |
 4 |   "n_head": 12,
   |             -- 12 query heads
 5 |   "num_key_value_heads": 5,
   |                          ^ 5 key/value heads
   |
   = why: each key/value head serves an equal number of query heads
   = try: --set num_key_value_heads=6   (valid: 1, 2, 3, 4, 6, 12)"#,
    ),
    (
        "the text part",
        r#"{
  "architectures": [
    "Gemma3ForConditionalGeneration"
  ],
  "model_type": "gemma3",
  "torch_dtype": "bfloat16",
  "mm_tokens_per_image": 256,
  "text_config": {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "rope_scaling": {
      "factor": 8.0,
      "rope_type": "linear"
    }
  },
  "vision_config": {
    "model_type": "siglip_vision_model",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "image_size": 896,
    "patch_size": 14
  }
}
"#,
        r#"note[T0111]: the language model is read from `text_config`
  --> config.json:8:18
   |
 8 |   "text_config": {
   |                  ^
   |
   = effect: no part of it: vision_config

warning[T0118]: `sliding_window` = 1024 is not understood
  --> config.json:17:5
   |
17 |     "sliding_window": 1024,
   |     ^^^^^^^^^^^^^^^^
   |
   = effect: not counted; if it changes the model, the numbers are those of the model without it

warning[T0118]: `sliding_window_pattern` = 6 is not understood
  --> config.json:18:5
   |
18 |     "sliding_window_pattern": 6,
   |     ^^^^^^^^^^^^^^^^^^^^^^^^
   |
   = effect: not counted; if it changes the model, the numbers are those of the model without it"#,
    ),
];

#[test]
fn values_that_cannot_be_used() {
    for (name, text, expected) in CASES {
        let found = said(text.as_bytes());
        assert_eq!(found, *expected, "{name}, found:\n{found}\n");
    }
}
