//! Invariant 2: a view is what its index function says, allocates nothing and costs nothing.

use napkin_tensor::{Cost, DType, Device, Error, Layout, Runtime, Tensor};
use proptest::prelude::*;
use std::collections::HashSet;

/// A tensor as an explicit list: which element of the base each index names.
#[derive(Clone, Debug)]
struct Naive {
    shape: Vec<u64>,
    base: Vec<usize>,
}

impl Naive {
    fn at(&self, index: &[u64]) -> usize {
        let flat = index.iter().zip(&self.shape).fold(0, |flat, (&i, &n)| flat * n + i);
        self.base[flat as usize]
    }

    /// The view of shape `shape` whose element at `index` is the one of `self` at `from(index)`.
    fn map(&self, shape: Vec<u64>, from: impl Fn(&[u64]) -> Vec<u64>) -> Self {
        let base = indices(&shape).iter().map(|index| self.at(&from(index))).collect();
        Self { shape, base }
    }

    /// Whether some offset and strides name these elements: by comparing with the only candidates.
    fn strides_exist(&self) -> bool {
        if self.base.is_empty() {
            return true;
        }
        let first = self.base[0] as i64;
        let unit = |d: usize| (0..self.shape.len()).map(|e| u64::from(e == d)).collect::<Vec<_>>();
        let strides: Vec<i64> = (0..self.shape.len())
            .map(|d| if self.shape[d] > 1 { self.at(&unit(d)) as i64 - first } else { 0 })
            .collect();
        let position = |index: &[u64]| first + index.iter().zip(&strides).map(|(&i, &s)| i as i64 * s).sum::<i64>();
        indices(&self.shape).iter().zip(&self.base).all(|(index, &at)| position(index) == at as i64)
    }
}

/// All indices of a shape, row-major.
fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    shape.iter().fold(vec![Vec::new()], |outer, &n| {
        outer.iter().flat_map(|index| (0..n).map(|i| [&index[..], &[i]].concat())).collect()
    })
}

/// One step of a chain of views: a kind and numbers to draw its parameters from.
type Step = (u8, u64, u64, u64);

/// Applies a step to both; `None` if it does not apply to this shape.
fn step((kind, a, b, c): Step, t: &Tensor, naive: &Naive) -> Option<(Tensor, Naive)> {
    let rank = t.rank() as u64;
    let shape = naive.shape.clone();
    if rank == 0 && kind != 6 {
        return None;
    }
    let (d, e) = ((a % rank.max(1)) as usize, (b % rank.max(1)) as usize);
    let (dim, other) = (d as isize, e as isize);
    Some(match kind {
        0 => {
            let mut to = shape;
            to.swap(d, e);
            let naive = naive.map(to, |index| {
                let mut from = index.to_vec();
                from.swap(d, e);
                from
            });
            (t.transpose(dim, other).ok()?, naive)
        }
        1 => {
            let size = shape[d];
            let start = b % (size + 1);
            let stride = 1 + c % 2;
            let len = (size - start).div_ceil(stride);
            let mut to = shape;
            to[d] = len;
            let naive = naive.map(to, |index| {
                let mut from = index.to_vec();
                from[d] = start + stride * index[d];
                from
            });
            (t.narrow_step(dim, start, len, stride).unwrap(), naive)
        }
        2 if shape[d] > 0 => {
            let picked = b % shape[d];
            let mut to = shape;
            to.remove(d);
            let naive = naive.map(to, |index| {
                let mut from = index.to_vec();
                from.insert(d, picked);
                from
            });
            (t.select(dim, picked).unwrap(), naive)
        }
        3 if d != e => {
            let mut to: Vec<u64> = (0..shape.len()).filter(|&x| x != d && x != e).map(|x| shape[x]).collect();
            to.push(shape[d].min(shape[e]));
            let naive = naive.map(to, |index| {
                let (&diagonal, rest) = index.split_last().unwrap();
                let mut rest = rest.iter();
                (0..rank as usize).map(|x| if x == d || x == e { diagonal } else { *rest.next().unwrap() }).collect()
            });
            (t.diagonal(dim, other).unwrap(), naive)
        }
        4 if shape[d] == 1 => {
            let mut to = shape;
            to[d] = 1 + b % 3;
            let naive = naive.map(to.clone(), |index| {
                let mut from = index.to_vec();
                from[d] = 0;
                from
            });
            (t.expand(&to).unwrap(), naive)
        }
        5 if shape[d] == 1 => {
            let mut to = shape;
            to.remove(d);
            (t.squeeze(dim).unwrap(), Naive { shape: to, ..naive.clone() })
        }
        6 if rank < 5 => {
            let at = a % (rank + 1);
            let mut to = shape;
            to.insert(at as usize, 1);
            (t.unsqueeze(at as isize).unwrap(), Naive { shape: to, ..naive.clone() })
        }
        7 => {
            // Split a dimension, or merge two neighbours.
            let mut to = shape;
            if let Some(part) = (2..to[d]).find(|&n| to[d].is_multiple_of(n)) {
                to[d] /= part;
                to.insert(d + 1, part);
            } else if d + 1 < to.len() {
                to[d] *= to.remove(d + 1);
            }
            let naive = Naive { shape: to.clone(), ..naive.clone() };
            match t.view(&to) {
                Ok(view) => {
                    assert!(naive.strides_exist());
                    (view, naive)
                }
                Err(Error::View(_)) => {
                    assert!(!naive.strides_exist(), "{:?} could be viewed as {to:?}", t.layout());
                    return None;
                }
                Err(other) => panic!("{other}"),
            }
        }
        8 => {
            let first = b % (shape[d] + 1);
            let pieces = t.split(&[first, shape[d] - first], dim).unwrap();
            let mut to = shape;
            to[d] -= first;
            let naive = naive.map(to, |index| {
                let mut from = index.to_vec();
                from[d] += first;
                from
            });
            (pieces[1].clone(), naive)
        }
        _ => return None,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_are_their_index_function_and_cost_nothing(
        shape in prop::collection::vec(1u64..7, 1..4),
        steps in prop::collection::vec((0u8..9, 0u64..60, 0u64..60, 0u64..60), 1..7),
    ) {
        let rt = Runtime::new(Device::Cpu);
        let count = shape.iter().product::<u64>();
        let x = rt.arange(count, 0.0, 1.0, DType::F64).unwrap().view(&shape).unwrap();
        let (live, peak) = (rt.live_bytes(), rt.peak_bytes());
        let mut naive = Naive { shape, base: (0..count as usize).collect() };
        let mut t = x.clone();
        for s in steps {
            if let Some((view, model)) = step(s, &t, &naive) {
                (t, naive) = (view, model);
            }
        }
        prop_assert_eq!(t.shape(), &naive.shape[..]);
        prop_assert_eq!(t.to_vec().unwrap(), naive.base.iter().map(|&i| i as f64).collect::<Vec<_>>());
        prop_assert!(t.shares_storage_with(&x));
        prop_assert_eq!((rt.live_bytes(), rt.peak_bytes()), (live, peak));

        let layout: &Layout = t.layout();
        let distinct = naive.base.iter().collect::<HashSet<_>>().len() as u64;
        prop_assert_eq!(layout.unique_elements(), distinct);
        prop_assert!(distinct == layout.elements() || layout.overlaps());
        prop_assert_eq!(layout.end(), naive.base.iter().max().map_or(0, |&m| m as u64 + 1));
        // Row-major without gaps, if and only if the elements follow one another.
        prop_assert_eq!(layout.is_contiguous(), naive.base.windows(2).all(|w| w[1] == w[0] + 1));

        // Gradients and copies go through the same layouts.
        let dense = t.contiguous().unwrap();
        prop_assert!(dense.is_contiguous());
        prop_assert_eq!(dense.to_vec().unwrap(), t.to_vec().unwrap());

        let trace = rt.take_trace();
        for event in trace.ops.iter().filter(|e| e.op.variant() == "View") {
            prop_assert_eq!(event.cost, Cost::default());
            prop_assert!(event.outputs.iter().all(|o| o.storage == event.inputs[0].storage));
        }
    }
}
