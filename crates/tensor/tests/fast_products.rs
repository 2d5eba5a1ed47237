//! Ops that are matrix products: their fast kernels against the plain ones, on views of every kind.
#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, missing_docs)]

use napkin_tensor::{DType, Device, Kernels, Result, Runtime, Tensor};

type Program = fn(&Draw) -> Result<Tensor>;

/// Operands that are the same each time.
struct Draw {
    rt: Runtime,
    dtype: DType,
}

impl Draw {
    fn floats(&self, shape: &[u64]) -> Result<Tensor> {
        let count: u64 = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|i| f64::from((i * 37 + count) as u32 % 101) / 50.0 - 1.0).collect();
        self.rt.tensor(&values, shape, self.dtype)
    }

    fn sizes(&self, values: &[f64]) -> Result<Tensor> {
        self.rt.tensor(values, &[values.len() as u64], DType::I32)
    }
}

const PROGRAMS: &[(&str, Program)] = &[
    ("matmul", |g| g.floats(&[37, 50])?.matmul(&g.floats(&[50, 41])?)),
    ("both transposed", |g| g.floats(&[50, 37])?.t()?.matmul(&g.floats(&[41, 50])?.t()?)),
    ("a sum of no products", |g| g.floats(&[3, 0])?.matmul(&g.floats(&[0, 4])?)),
    ("no rows", |g| g.floats(&[0, 3])?.matmul(&g.floats(&[3, 4])?)),
    ("one number", |g| g.floats(&[1, 1])?.matmul(&g.floats(&[1, 1])?)),
    ("rows apart", |g| g.floats(&[20, 30])?.narrow_step(0, 1, 6, 3)?.matmul(&g.floats(&[30, 9])?)),
    ("part of the columns", |g| g.floats(&[20, 30])?.narrow(1, 5, 11)?.matmul(&g.floats(&[11, 9])?)),
    ("every third column", |g| g.floats(&[20, 33])?.narrow_step(1, 2, 11, 3)?.matmul(&g.floats(&[11, 9])?)),
    ("one row many times", |g| g.floats(&[1, 30])?.expand(&[20, 30])?.matmul(&g.floats(&[30, 9])?)),
    ("batch", |g| g.floats(&[2, 3, 7, 20])?.matmul(&g.floats(&[2, 3, 20, 17])?)),
    ("batch of heads", |g| {
        let (q, k) = (g.floats(&[2, 9, 3, 16])?, g.floats(&[2, 11, 3, 16])?); // b s a d
        q.permute(&[0, 2, 1, 3])?.matmul(&k.permute(&[0, 2, 3, 1])?)
    }),
    ("second factor shared", |g| g.floats(&[4, 3, 7, 20])?.matmul(&g.floats(&[20, 17])?)),
    ("second factor shared, first transposed", |g| g.floats(&[4, 20, 7])?.t()?.matmul(&g.floats(&[20, 17])?)),
    ("second factor shared in the inner batch", |g| g.floats(&[4, 3, 7, 20])?.matmul(&g.floats(&[4, 1, 20, 17])?)),
    ("second factor shared, rows apart", |g| g.floats(&[4, 7, 20])?.narrow(1, 1, 5)?.matmul(&g.floats(&[20, 17])?)),
    ("second factor shared by single rows", |g| g.floats(&[4, 3, 1, 20])?.matmul(&g.floats(&[20, 17])?)),
    ("first factor shared", |g| g.floats(&[7, 20])?.matmul(&g.floats(&[2, 2, 20, 17])?)),
    ("long", |g| g.floats(&[2, 1000])?.matmul(&g.floats(&[1000, 3])?)),
    ("narrow factors, scales unknown", |g| {
        let zero = || g.rt.zeros(&[], DType::F32);
        let (x, inverse) = g.floats(&[37, 50])?.scaled_cast(DType::F8E4M3, &zero()?, &zero()?)?;
        let (w, inverse_w) = g.floats(&[50, 41])?.scaled_cast(DType::F8E5M2, &zero()?, &zero()?)?;
        x.scaled_matmul(&w.t()?, &inverse, &inverse_w, g.dtype)
    }),
    ("linear", |g| g.floats(&[5, 9, 20])?.linear(&g.floats(&[33, 20])?, Some(&g.floats(&[33])?))),
    ("linear without bias", |g| g.floats(&[5, 9, 20])?.linear(&g.floats(&[33, 20])?, None)),
    ("linear, weight transposed", |g| {
        g.floats(&[5, 9, 20])?.linear_transposed(&g.floats(&[20, 33])?, Some(&g.floats(&[33])?))
    }),
    ("linear of a vector", |g| g.floats(&[20])?.linear(&g.floats(&[33, 20])?, Some(&g.floats(&[33])?))),
    ("linear of rows that do not merge", |g| {
        g.floats(&[9, 5, 20])?.transpose(0, 1)?.linear(&g.floats(&[33, 20])?, Some(&g.floats(&[33])?))
    }),
    ("linear, bias apart", |g| {
        let bias = g.floats(&[66])?.narrow_step(0, 1, 33, 2)?;
        g.floats(&[5, 20])?.linear(&g.floats(&[33, 20])?, Some(&bias))
    }),
    ("grouped", |g| g.floats(&[12, 20])?.grouped_linear(&g.floats(&[4, 9, 20])?, &g.sizes(&[3., 0., 8., 1.])?)),
    ("grouped, weights transposed", |g| {
        g.floats(&[12, 20])?.grouped_linear_transposed(&g.floats(&[4, 20, 9])?, &g.sizes(&[3., 0., 8., 1.])?)
    }),
    ("gradient of grouped weights", |g| {
        let w = g.floats(&[4, 9, 20])?.require_grad()?;
        let y = g.floats(&[12, 20])?.grouped_linear(&w, &g.sizes(&[3., 0., 8., 1.])?)?;
        y.mul(&y)?.sum_all()?.backward()?;
        Ok(w.grad().unwrap())
    }),
    ("gradient of a weight", |g| {
        let w = g.floats(&[33, 20])?.require_grad()?;
        let y = g.floats(&[5, 9, 20])?.linear(&w, None)?;
        y.mul(&y)?.sum_all()?.backward()?;
        Ok(w.grad().unwrap())
    }),
];

#[test]
fn fast_products_are_the_plain_ones() {
    for (dtype, spacing) in [(DType::F32, 1.2e-7), (DType::F64, 2.3e-16), (DType::BF16, 7.9e-3), (DType::F16, 9.8e-4)] {
        for (name, program) in PROGRAMS {
            let run = |kernels| {
                let g = Draw { rt: Runtime::new(Device::Cpu), dtype };
                g.rt.set_kernels(kernels);
                let out = program(&g).unwrap_or_else(|e| panic!("{name}: {e}"));
                (out.shape().to_vec(), out.to_vec().unwrap())
            };
            let (fast, plain) = (run(Kernels::Fast), run(Kernels::Plain));
            assert_eq!(fast.0, plain.0, "{name}");
            let largest = plain.1.iter().fold(0.0f64, |a, x| a.max(x.abs()));
            for (i, (x, y)) in fast.1.iter().zip(&plain.1).enumerate() {
                // Both round sums of up to 1000 products, in f32 at least, each its own way; and then the result.
                let sums = 20.0 * f64::min(spacing, 1.2e-7);
                assert!(
                    (x - y).abs() <= (sums + 4.0 * spacing) * largest.max(1.0),
                    "{name} in {dtype:?} at {i}: {x}, plain {y}"
                );
            }
        }
    }
}
