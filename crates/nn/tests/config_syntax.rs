//! What is said about files that are not JSON, or not an object, word for word.

mod support;

use support::said;

/// Name, text, what is said.
const CASES: &[(&str, &str, &str)] = &[
    (
        "empty",
        "",
        "error[T0103]: the file is empty
  --> config.json
   = try: give the model's own `config.json`",
    ),
    (
        "blank",
        "  
 
",
        "error[T0103]: the file is empty
  --> config.json
   = try: give the model's own `config.json`",
    ),
    (
        "a list",
        "[]",
        r#"error[T0108]: the file holds a list, not an object
  --> config.json:1:1
   |
 1 | []
   | ^^
   |
   = why: a model configuration is one object, `{"model_type": ..., ...}`
   = try: give the model's own `config.json`"#,
    ),
    (
        "a string",
        r#""str""#,
        r#"error[T0108]: the file holds a string, not an object
  --> config.json:1:1
   |
 1 | "str"
   | ^^^^^
   |
   = why: a model configuration is one object, `{"model_type": ..., ...}`
   = try: give the model's own `config.json`"#,
    ),
    (
        "just a word",
        "hello",
        "error[T0104]: `hello` is not a JSON value
  --> config.json:1:1
   |
 1 | hello
   | ^^^^^ expected a value
   |
   = try: strings need double quotes",
    ),
    (
        "truncated",
        r#"{
  "model_type": "llama",
  "hidden_size": 2048,
  "num_hidden_layers": 22,
  "num_attention_heads": 32,
  "rope_scaling": {"rope_type": "llama3", "fac"#,
        r#"error[T0105]: the text ends in the middle of a JSON value
  --> config.json:6:47
   |
 6 |   "rope_scaling": {"rope_type": "llama3", "fac
   |                                               ^
   |                                           - this value is not complete
   |
   = why: 152 bytes were read, with 2 brackets still open
   = try: fetch or copy the file again: it looks cut off"#,
    ),
    (
        "truncated word",
        r#"{"a": tru"#,
        r#"error[T0105]: the text ends in the middle of a JSON value
  --> config.json:1:10
   |
 1 | {"a": tru
   |          ^
   |       - this value is not complete
   |
   = why: 9 bytes were read, with 1 bracket still open
   = try: fetch or copy the file again: it looks cut off"#,
    ),
    (
        "truncated after the colon",
        r#"{
  "a":
"#,
        r#"error[T0105]: the text ends in the middle of a JSON value
  --> config.json:2:7
   |
 1 | {
   | - this bracket is never closed
 2 |   "a":
   |       ^
   |
   = why: 9 bytes were read, with 1 bracket still open
   = try: fetch or copy the file again: it looks cut off"#,
    ),
    (
        "several at once",
        r#"{
  // sizes
  "hidden_size": 64,
  "num_hidden_layers": True
  "vocab_size": 0100,
}
"#,
        r#"error[T0104]: JSON has no comments
  --> config.json:2:3
   |
 2 |   // sizes
   |   ^^^^^^^^ comment
   |
   = try: delete the comment

error[T0104]: `True` is Python, not JSON
  --> config.json:4:24
   |
 4 |   "num_hidden_layers": True
   |                        ^^^^ JSON writes `true`
   |
   = try: write `true`

error[T0104]: no comma between two items
  --> config.json:4:27
   |
 4 |   "num_hidden_layers": True
   |                           ^ expected `,` after this
   |
   = try: add a comma

error[T0104]: `0100` is not a JSON number
  --> config.json:5:17
   |
 5 |   "vocab_size": 0100,
   |                 ^^^^ not a number
   |
   = try: JSON numbers have no leading zero or `+`, no `_`, and digits on both sides of the point

error[T0104]: a comma after the last item
  --> config.json:5:21
   |
 5 |   "vocab_size": 0100,
   |                     ^ JSON allows none here
   |
   = try: delete the comma"#,
    ),
    (
        "single quotes",
        "{'hidden_size': 64}",
        r#"error[T0104]: a key must be a string
  --> config.json:1:2
   |
 1 | {'hidden_size': 64}
   |  ^ expected `"`
   |
   = try: write the key in double quotes"#,
    ),
    (
        "unquoted key",
        "{hidden_size: 64}",
        r#"error[T0104]: a key must be a string
  --> config.json:1:2
   |
 1 | {hidden_size: 64}
   |  ^^^^^^^^^^^ expected `"`
   |
   = try: write the key in double quotes"#,
    ),
    (
        "no colon",
        r#"{"hidden_size" 64}"#,
        r#"error[T0104]: no `:` after a key
  --> config.json:1:16
   |
 1 | {"hidden_size" 64}
   |                ^^ expected `:`
   |
   = try: write `"key": value`"#,
    ),
    (
        "wrong bracket",
        r#"{"a": [1, 2}"#,
        r#"error[T0104]: expected `]` here
  --> config.json:1:12
   |
 1 | {"a": [1, 2}
   |            ^
   |       - to close this bracket
   |
   = try: balance the brackets"#,
    ),
    (
        "two values",
        "{} {}",
        "error[T0104]: text after the end of the JSON value
  --> config.json:1:4
   |
 1 | {} {}
   |    ^ nothing may follow the value
   |
   = try: delete it",
    ),
    (
        "open string",
        r#"{"a": "x
}"#,
        r#"error[T0104]: a string that is not closed on its line
  --> config.json:1:7
   |
 1 | {"a": "x
   |       ^^ begins here
   |
   = try: add the closing `"`"#,
    ),
    (
        "bad escape",
        r#"{"a": "C:\model", "b": "\u00z"}"#,
        r#"error[T0104]: an unknown escape in a string
  --> config.json:1:10
   |
 1 | {"a": "C:\model", "b": "\u00z"}
   |          ^^ not an escape
   |
   = try: write `\\` for a backslash

error[T0104]: `\u` needs four hexadecimal digits
  --> config.json:1:25
   |
 1 | {"a": "C:\model", "b": "\u00z"}
   |                         ^^ incomplete escape
   |
   = try: write `\u0041`"#,
    ),
];

#[test]
fn texts_that_are_not_json() {
    for (name, text, expected) in CASES {
        let found = said(text.as_bytes());
        assert_eq!(found, *expected, "{name}, found:\n{found}\n");
    }
}
