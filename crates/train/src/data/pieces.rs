//! Cuts a text into pieces that can be tokenized one by one with the ids of the whole.
//!
//! The encodings first split a text by a pattern, from left to right, and a part never becomes one token with its
//! neighbour. So a text may be cut where a part ends whatever follows, and where what precedes does not matter, which is
//! everywhere a part ends because the patterns do not look back. These two places are such ends in all patterns of
//! [`Tokenizer`](super::Tokenizer):
//!
//! * before a space behind something that is no whitespace: no part has a space behind a character that is none, and
//!   only parts of whitespace look ahead;
//! * behind a single line feed between two characters that are no whitespace, unless the second is a slash: it is the
//!   end of a part of punctuation or a part of its own.

use std::ops::Range;

/// True if the text may be cut before byte `at`. What is not UTF-8 around it makes it false.
pub(crate) fn is_cut(bytes: &[u8], at: usize) -> bool {
    if bytes.get(at) == Some(&b' ') {
        return char_before(bytes, at).is_some_and(|c| !c.is_whitespace());
    }
    at >= 1
        && bytes.get(at - 1) == Some(&b'\n')
        && char_before(bytes, at - 1).is_some_and(|c| !c.is_whitespace())
        && char_at(bytes, at).is_some_and(|c| !c.is_whitespace() && c != '/')
}

fn char_before(bytes: &[u8], at: usize) -> Option<char> {
    let from = bytes[..at].iter().rposition(|byte| byte & 0xC0 != 0x80)?;
    // A character has at most four bytes.
    if at - from > 4 { None } else { std::str::from_utf8(&bytes[from..at]).ok()?.chars().next() }
}

fn char_at(bytes: &[u8], at: usize) -> Option<char> {
    let end = (at + 4).min(bytes.len());
    (at + 1..=end).find_map(|end| std::str::from_utf8(&bytes[at..end]).ok()).and_then(|text| text.chars().next())
}

/// Ranges of about `target` bytes that cover `bytes` in order. Where no place to cut is near, one is longer.
pub(crate) struct Pieces<'a> {
    bytes: &'a [u8],
    start: usize,
    target: usize,
    anywhere: bool,
}

impl<'a> Pieces<'a> {
    /// `anywhere` cuts without looking, for tokenizers of bytes.
    pub(crate) fn new(bytes: &'a [u8], target: usize, anywhere: bool) -> Self {
        Self { bytes, start: 0, target: target.max(1), anywhere }
    }
}

impl Iterator for Pieces<'_> {
    type Item = Range<usize>;
    fn next(&mut self) -> Option<Range<usize>> {
        let (start, len) = (self.start, self.bytes.len());
        if start == len {
            return None;
        }
        let goal = start.saturating_add(self.target);
        let end = if goal >= len {
            len
        } else if self.anywhere {
            goal
        } else {
            let near = (start + 1..=goal).rev().take(self.target.div_ceil(2)).find(|&at| is_cut(self.bytes, at));
            near.or_else(|| (goal + 1..len).find(|&at| is_cut(self.bytes, at))).unwrap_or(len)
        };
        self.start = end;
        Some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tokenizer::Tokenizer;
    use super::*;

    const CYRILLIC: &str =
        "Все счастливые семьи похожи друг на друга,\nкаждая несчастливая семья несчастлива по-своему.\n";
    const CHINESE: &str = "學而時習之,不亦說乎?\n有朋自遠方來,不亦樂乎?\n人不知而不慍,不亦君子乎?\n";
    const CODE: &str =
        "fn main() {\r\n\tlet x = 1_000;  // a comment\r\n\r\n    println!(\"{x}\\n\");\n}\n\n\n// end\n/* x */\n";

    fn tokenizers() -> Vec<Tokenizer> {
        ["gpt2", "cl100k_base", "o200k_base"].into_iter().map(|name| Tokenizer::by_name(name).unwrap()).collect()
    }

    fn in_pieces(tokenizer: &Tokenizer, text: &str, target: usize) -> Vec<u32> {
        let pieces = Pieces::new(text.as_bytes(), target, false);
        pieces.flat_map(|piece| tokenizer.encode(&text[piece]).unwrap()).collect()
    }

    #[test]
    fn pieces_cover_the_text() {
        let text = format!("{CYRILLIC}{CHINESE}{CODE}").repeat(3);
        for anywhere in [false, true] {
            for target in [1, 2, 3, 7, 64, 1000, 1 << 20] {
                let pieces: Vec<_> = Pieces::new(text.as_bytes(), target, anywhere).collect();
                assert_eq!(pieces[0].start, 0);
                assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start && !pair[0].is_empty()));
                assert_eq!(pieces.last().unwrap().end, text.len());
                assert!(!anywhere || pieces.len() == text.len().div_ceil(target));
                assert!(anywhere || target > 64 || pieces.len() > 10, "{target}");
            }
        }
        assert_eq!(Pieces::new(b"", 10, false).count(), 0);
        // No place to cut: one piece.
        assert_eq!(Pieces::new("a".repeat(1000).as_bytes(), 10, false).count(), 1);
    }

    #[test]
    fn pieces_have_the_ids_of_the_whole() {
        let novel = &include_str!("../../../../data/text/persuasion.txt")[..20_000];
        let all =
            [novel.to_owned(), novel.replace('\n', "\r\n"), CYRILLIC.repeat(20), CHINESE.repeat(20), CODE.repeat(20)];
        for tokenizer in tokenizers() {
            for text in &all {
                let whole = tokenizer.encode(text).unwrap();
                for target in [1, 5, 100, 1_000] {
                    assert!(
                        in_pieces(&tokenizer, text, target) == whole,
                        "{} {target}",
                        tokenizer.vocabulary().tokenizer
                    );
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_not_cut_through() {
        // A space behind half a character, and behind a stray continuation byte.
        assert!(!is_cut(b"\xE2\x82 x", 2));
        assert!(!is_cut(b"\x82\x82\x82\x82\x82 x", 5));
        assert!(is_cut("€ x".as_bytes(), 3));
        assert!(!is_cut("\u{3000} x".as_bytes(), 3));
        for (text, at, cut) in
            [("a b", 1, true), (" b", 0, false), ("a  b", 2, false), ("a\nb", 2, true), ("a\n/", 2, false)]
        {
            assert_eq!(is_cut(text.as_bytes(), at), cut, "{text:?}");
        }
        assert!(!is_cut(b"a\n\nb", 3) && !is_cut(b"a\n\nb", 2) && !is_cut(b"a\r\nb", 3) && !is_cut(b"ab", 2));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        /// Texts of all that the patterns treat apart: blanks of several kinds, line breaks, letters of both cases,
        /// marks, digits, punctuation, contractions.
        #[test]
        fn every_place_to_cut_keeps_the_ids(
            text in proptest::collection::vec(
                prop_oneof![
                    Just(" "), Just("  "), Just("\n"), Just("\r\n"), Just("\t"), Just("\u{a0}"), Just("\u{3000}"),
                    Just("a"), Just("word"), Just("Word"), Just("WORD"), Just("é"), Just("e\u{301}"), Just("\u{301}"),
                    Just("字"), Just("1"), Just("12345"), Just("."), Just("/"), Just("'s"), Just("'LL"), Just("'"),
                    Just("!?"), Just("—"), Just("🙂"), Just("ǅ"), Just("ʰ"),
                ],
                0..40,
            )
        ) {
            let text = text.concat();
            let cuts: Vec<usize> = (1..text.len()).filter(|&at| is_cut(text.as_bytes(), at)).collect();
            thread_local!(static TOKENIZERS: Vec<Tokenizer> = tokenizers());
            TOKENIZERS.with(|all| {
                for tokenizer in all {
                    let whole = tokenizer.encode(&text).unwrap();
                    for &at in &cuts {
                        let mut halves = tokenizer.encode(&text[..at]).unwrap();
                        halves.extend(tokenizer.encode(&text[at..]).unwrap());
                        prop_assert_eq!(&halves, &whole, "{:?} | {:?}", &text[..at], &text[at..]);
                    }
                    prop_assert_eq!(in_pieces(tokenizer, &text, 1), whole);
                }
                Ok(())
            })?;
        }
    }
}
