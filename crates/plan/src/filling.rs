//! What of a batch is useful: padding that is processed for nothing, documents that are packed into a sequence and do not
//! see each other.

use units::{Diagnostic, Flops};

use crate::report::{Assumption, Cell, Origin};
use crate::work::{Convention, Work};

/// How sequences are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Filling {
    /// Share of the processed tokens that are no padding.
    pub useful: Option<f64>,
    /// Tokens of a document; a sequence holds as many as fit, and attention does not cross from one to the next.
    pub doc_len: Option<u64>,
}

impl Filling {
    /// The work of a token in sequences that are filled so.
    ///
    /// Attention over documents of n tokens instead of sequences of s has (n + 1) / (s + 1) of the causal pairs of a token,
    /// and n / s of the full square.
    ///
    /// # Errors
    /// `T0472` for documents longer than a sequence, or where it is not known what attention takes.
    pub fn applied(self, mut work: Work) -> Result<Work, Diagnostic> {
        if let Some(n) = self.doc_len {
            let Some((attention, seq_len)) = work.attention.zip(work.seq_len) else {
                return Err(Diagnostic::error("T0472", "--doc-len: nothing is known of the attention of this model")
                    .help("give a config instead of a bare count"));
            };
            if n == 0 || n > seq_len {
                return Err(Diagnostic::error("T0472", format!("--doc-len {n} in sequences of {seq_len}"))
                    .why("a document has at least one token and is no longer than the sequence it lies in")
                    .help(format!("--seq-len {n}")));
            }
            let rest = work.flop_per_token().get() - attention.get();
            for (convention, flop) in &mut work.per_token {
                let (part, of) = match convention {
                    Convention::Causal => (n + 1, seq_len + 1),
                    Convention::Full => (n, seq_len),
                    _ => continue,
                };
                let within = (flop.get() - rest.min(flop.get())) * u128::from(part) / u128::from(of);
                *flop = Flops(rest + within);
            }
            work.attention = Some(Flops(work.flop_per_token().get() - rest));
            work.assumptions.push(
                Assumption::new("doc_len", "documents", n, Origin::Given)
                    .why("packed into each sequence; attention stays within one")
                    .flag("--doc-len"),
            );
        }
        if let Some(share) = self.useful {
            work.useful = Some(share);
            work.assumptions.push(
                Assumption::new("useful_tokens", "useful tokens", Cell::Percent(share), Origin::Given)
                    .why("the rest is padding: processed, and of no use")
                    .flag("--useful-tokens"),
            );
        }
        Ok(work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use units::Params;

    /// By hand: 100 beside attention, 51 causal pairs' worth and 100 of the full square at 50 tokens.
    #[test]
    fn documents_see_themselves_only() {
        let mut work = Work::dense("x", Params(1));
        work.per_token = vec![
            (Convention::Causal, Flops(100 + 51)),
            (Convention::Full, Flops(100 + 100)),
            (Convention::SixN, Flops(90)),
        ];
        (work.attention, work.seq_len) = (Some(Flops(51)), Some(50));
        let filling = Filling { useful: Some(0.5), doc_len: Some(16) };
        let filled = filling.applied(work.clone()).unwrap();
        let flops: Vec<u128> = filled.per_token.iter().map(|(_, flop)| flop.get()).collect();
        assert_eq!(flops, [100 + 17, 100 + 32, 90]);
        assert_eq!((filled.attention, filled.useful), (Some(Flops(17)), Some(0.5)));
        for doc_len in [0, 51] {
            assert!(Filling { doc_len: Some(doc_len), ..filling }.applied(work.clone()).is_err());
        }
        assert!(filling.applied(Work::dense("x", Params(1))).is_err());
    }
}
