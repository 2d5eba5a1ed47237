//! Parsed patterns, kept per thread and bounded.
//!
//! Per thread, because a lock on the way to every rearrange would be dearer than parsing twice. Bounded, because
//! patterns can be made at run time, and a cache that only grows is a leak.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use smallvec::SmallVec;

use super::einsum::Contraction;
use super::equation::Equation;
use super::error::PatternError;
use super::plan::{Dims, Pattern, PatternKind};

/// Texts kept per operation and thread. A model uses a few dozen.
const TEXTS: usize = 256;

/// Sets of shapes kept per equation. A training step uses one or two.
const SHAPES: usize = 16;

/// A map that forgets its oldest entry when it is full.
struct Bounded<V> {
    map: HashMap<Box<str>, V>,
    order: VecDeque<Box<str>>,
    limit: usize,
}

impl<V> Bounded<V> {
    fn new(limit: usize) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), limit }
    }

    fn get(&mut self, key: &str) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    fn insert(&mut self, key: &str, value: V) {
        if self.map.insert(key.into(), value).is_some() {
            return;
        }
        self.order.push_back(key.into());
        if self.order.len() > self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.map.remove(&oldest);
        }
    }
}

/// An equation with the contractions it was resolved to, newest last.
struct CachedEquation {
    equation: Arc<Equation>,
    resolved: VecDeque<(SmallVec<[Dims; 3]>, Arc<Contraction>)>,
}

struct Caches {
    rearrange: Bounded<Arc<Pattern>>,
    reduce: Bounded<Arc<Pattern>>,
    repeat: Bounded<Arc<Pattern>>,
    einsum: Bounded<CachedEquation>,
}

thread_local! {
    static CACHES: RefCell<Caches> = RefCell::new(Caches {
        rearrange: Bounded::new(TEXTS),
        reduce: Bounded::new(TEXTS),
        repeat: Bounded::new(TEXTS),
        einsum: Bounded::new(TEXTS),
    });
}

impl Caches {
    fn patterns(&mut self, kind: PatternKind) -> &mut Bounded<Arc<Pattern>> {
        match kind {
            PatternKind::Rearrange => &mut self.rearrange,
            PatternKind::Reduce => &mut self.reduce,
            PatternKind::Repeat => &mut self.repeat,
        }
    }
}

/// The parsed pattern for `text`, from the cache when it was parsed before on this thread. Errors are not kept.
///
/// # Errors
/// As [`Pattern::parse`].
pub fn pattern(kind: PatternKind, text: &str) -> Result<Arc<Pattern>, PatternError> {
    if let Some(known) = CACHES.with_borrow_mut(|caches| caches.patterns(kind).get(text).cloned()) {
        return Ok(known);
    }
    let parsed = Arc::new(Pattern::parse(kind, text)?);
    CACHES.with_borrow_mut(|caches| caches.patterns(kind).insert(text, Arc::clone(&parsed)));
    Ok(parsed)
}

/// The contraction for an equation and these operand shapes, its order of steps included, from the cache when this
/// thread has resolved it before.
///
/// # Errors
/// As [`Equation::parse`] and [`Equation::resolve`].
pub fn contraction(equation: &str, shapes: &[&[u64]]) -> Result<Arc<Contraction>, PatternError> {
    let same = |known: &SmallVec<[Dims; 3]>| {
        known.len() == shapes.len() && known.iter().zip(shapes).all(|(a, b)| a[..] == **b)
    };
    let known = CACHES.with_borrow_mut(|caches| {
        let cached = caches.einsum.get(equation)?;
        let hit = cached.resolved.iter().find(|(known, _)| same(known));
        Some((Arc::clone(&cached.equation), hit.map(|(_, contraction)| Arc::clone(contraction))))
    });
    let parsed = match known {
        Some((_, Some(contraction))) => return Ok(contraction),
        Some((parsed, None)) => parsed,
        None => Arc::new(Equation::parse(equation)?),
    };
    let contraction = Arc::new(parsed.resolve(shapes)?);
    CACHES.with_borrow_mut(|caches| {
        if caches.einsum.get(equation).is_none() {
            caches.einsum.insert(equation, CachedEquation { equation: parsed, resolved: VecDeque::new() });
        }
        if let Some(cached) = caches.einsum.get(equation) {
            if cached.resolved.len() == SHAPES {
                cached.resolved.pop_front();
            }
            let key = shapes.iter().map(|shape| Dims::from_slice(shape)).collect();
            cached.resolved.push_back((key, Arc::clone(&contraction)));
        }
    });
    Ok(contraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_gives_the_same_plan() -> Result<(), PatternError> {
        let first = pattern(PatternKind::Rearrange, "a b -> b a")?;
        assert!(Arc::ptr_eq(&first, &pattern(PatternKind::Rearrange, "a b -> b a")?));
        assert!(!Arc::ptr_eq(&first, &pattern(PatternKind::Reduce, "a b -> b a")?));
        let shapes: [&[u64]; 2] = [&[2, 3], &[3, 4]];
        let path = contraction("i j, j k -> i k", &shapes)?;
        assert!(Arc::ptr_eq(&path, &contraction("i j, j k -> i k", &shapes)?));
        assert!(!Arc::ptr_eq(&path, &contraction("i j, j k -> i k", &[&[2, 5], &[5, 4]])?));
        Ok(())
    }

    #[test]
    fn the_oldest_entry_goes_first() {
        let mut cache = Bounded::new(2);
        for key in ["a", "b", "b", "c"] {
            cache.insert(key, ());
        }
        assert!(cache.get("a").is_none() && cache.get("b").is_some() && cache.get("c").is_some());
        assert_eq!((cache.map.len(), cache.order.len()), (2, 2));
    }

    #[test]
    fn shapes_per_equation_are_bounded() -> Result<(), PatternError> {
        for size in 1..100_u64 {
            contraction("q r -> r", &[&[size, 2]])?;
        }
        let kept = CACHES.with_borrow_mut(|caches| caches.einsum.get("q r -> r").map(|cached| cached.resolved.len()));
        assert_eq!(kept, Some(SHAPES));
        Ok(())
    }
}
