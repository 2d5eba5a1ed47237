//! A shell script as words: quotes, comments, continued lines, and variables that the script itself sets.

use std::collections::BTreeMap;
use std::ops::Range;

/// A word and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// What the shell makes of it; variables that the text does not set stay as they are.
    pub text: String,
    /// Where it stands.
    pub span: Range<usize>,
}

/// Longest word that variables may make.
const MOST: usize = 1 << 12;

/// The words of a script. `TP=8` sets what `$TP`, `${TP}` and `${TP:-4}` are from there on; parentheses of lists and what ends
/// a command stand between words. With them the place of a quote that is never closed, if there is one.
pub fn of(text: &str) -> (Vec<Word>, Option<usize>) {
    let mut words = Vec::new();
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    let mut chars = text.char_indices().peekable();
    let mut word: Option<(usize, String)> = None;
    let mut quote: Option<(char, usize)> = None;
    let mut end = |word: &mut Option<(usize, String)>, at: usize, variables: &mut BTreeMap<String, String>| {
        let Some((start, text)) = word.take() else { return };
        if let Some((name, value)) = text.split_once('=')
            && is_name(name)
        {
            variables.insert(name.to_owned(), value.to_owned());
        } else if text.starts_with("--") && text.contains(char::is_whitespace) {
            // An option with its value in one pair of quotes: a list without quotes around it takes them apart again.
            words.extend(text.split_whitespace().map(|text| Word { text: text.to_owned(), span: start..at }));
        } else {
            words.push(Word { text, span: start..at });
        }
    };
    while let Some((at, c)) = chars.next() {
        match (quote.map(|(open, _)| open), c) {
            (Some(open), c) if c == open => quote = None,
            (Some('\''), c) => push(&mut word, at, c),
            (_, '\\') => match chars.next() {
                Some((_, '\n')) | None => {}
                Some((_, '\r')) => drop(chars.next_if(|(_, next)| *next == '\n')),
                Some((_, escaped)) => push(&mut word, at, escaped),
            },
            (_, '$') => {
                let name = name_at(&mut chars);
                let value = name.value(&variables);
                let (_, text) = word.get_or_insert((at, String::new()));
                if text.len() + value.len() <= MOST {
                    text.push_str(&value);
                }
            }
            (None, '"' | '\'') => {
                quote = Some((c, at));
                word.get_or_insert((at, String::new()));
            }
            (None, '#') if word.is_none() => while chars.next_if(|(_, next)| *next != '\n').is_some() {},
            (None, c) if c.is_whitespace() || matches!(c, '(' | ')' | ';' | '&' | '|' | '<' | '>') => {
                end(&mut word, at, &mut variables);
            }
            (_, c) => push(&mut word, at, c),
        }
    }
    end(&mut word, text.len(), &mut variables);
    (words, quote.map(|(_, at)| at))
}

fn push(word: &mut Option<(usize, String)>, at: usize, c: char) {
    word.get_or_insert((at, String::new())).1.push(c);
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A variable as it is used.
enum Use {
    /// `$NAME`, `${NAME}`, `${NAME:-word}`: what is written, the name, the word.
    Name(String, String, Option<String>),
    /// `${NAME[@]}`: a list, whose words stand in the text themselves.
    List,
    /// Anything else.
    Other(String),
}

impl Use {
    fn value(self, variables: &BTreeMap<String, String>) -> String {
        match self {
            Self::Name(written, name, other) => variables.get(&name).cloned().or(other).unwrap_or(written),
            Self::List => String::new(),
            Self::Other(written) => written,
        }
    }
}

/// What follows a `$`.
fn name_at(chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>) -> Use {
    if chars.next_if(|(_, c)| *c == '{').is_some() {
        let mut inside = String::new();
        while let Some((_, c)) = chars.next_if(|(_, c)| !matches!(c, '}' | '\n')) {
            inside.push(c);
        }
        chars.next_if(|(_, c)| *c == '}');
        let written = format!("${{{inside}}}");
        if inside.ends_with("[@]") || inside.ends_with("[*]") {
            return Use::List;
        }
        let (name, other) = match inside.split_once(":-") {
            Some((name, other)) => (name.to_owned(), Some(other.to_owned())),
            None => (inside, None),
        };
        let argument = !name.is_empty() && name.chars().all(|c| c.is_ascii_digit());
        return if argument || is_name(&name) { Use::Name(written, name, other) } else { Use::Other(written) };
    }
    let mut name = String::new();
    while let Some((_, c)) = chars.next_if(|(_, c)| c.is_ascii_alphanumeric() || *c == '_') {
        name.push(c);
    }
    let written = format!("${name}");
    if is_name(&name) { Use::Name(written, name, None) } else { Use::Other(written) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        of(text).0.into_iter().map(|word| word.text).collect()
    }

    #[test]
    fn words_of_the_shell() {
        let script = "#!/bin/bash\nTP=8 # of a node\nexport PP=\"${PP:-4}\"\nARGS=(\n  --tp $TP --pp \"${PP}\" \\\n  --x 'a $b' --y \"c \\\"d\\\"\"\n)\n\
                      torchrun --n=$N run.py \"${ARGS[@]}\"; echo --no#pe";
        let expected = [
            "export", "--tp", "8", "--pp", "4", "--x", "a $b", "--y", "c \"d\"", "torchrun", "--n=$N", "run.py", "",
            "echo", "--no#pe",
        ];
        assert_eq!(texts(script), expected);
        assert_eq!(texts("A+=( \"--fp8-format hybrid\" )"), ["A+=", "--fp8-format", "hybrid"]);
        let (spans, open) = of("a  $X bc");
        assert_eq!(open, None);
        assert_eq!([of("a 'b").1, of("--x \"a\" '").1, of("\"it's\"").1], [Some(2), Some(8), None]);
        assert_eq!(spans[1].span, 3..5);
        assert_eq!(&"a  $X bc"[spans[2].span.clone()], "bc");
        assert_eq!(texts("${1:-x} $2 ${3}"), ["x", "$2", "${3}"]);
        for odd in ["$", "${", "${A", "\"", "'", "\\", "A=", "=", "$A$A", "#", "é\\é"] {
            of(odd);
        }
    }

    #[test]
    fn variables_do_not_grow_without_bound() {
        let mut script = String::from("A0=xxxxxxxx\n");
        for n in 1..60 {
            let before = n - 1;
            script.extend([format!("A{n}=$A{before}$A{before}\n")]);
        }
        script += "$A59";
        assert!(texts(&script)[0].len() <= MOST);
    }
}
