//! Training steps of a GPT-2 in candle on the CPU.
//!
//! Layer norm is the composition of small ops: the fused one has no backward pass.

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::{AdamW, Embedding, Init, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss, ops};
use meter::Sizes;

struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new(width: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get_with_hints(width, "weight", Init::Const(1.0))?,
            bias: vb.get_with_hints(width, "bias", Init::Const(0.0))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm_slow(x, &self.weight, &self.bias, 1e-5)
    }
}

struct Block {
    heads: usize,
    ln_1: Norm,
    qkv: Linear,
    proj: Linear,
    ln_2: Norm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(width: usize, heads: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            heads,
            ln_1: Norm::new(width, vb.pp("ln_1"))?,
            qkv: linear(width, 3 * width, vb.pp("qkv"))?,
            proj: linear(width, width, vb.pp("proj"))?,
            ln_2: Norm::new(width, vb.pp("ln_2"))?,
            up: linear(width, 4 * width, vb.pp("up"))?,
            down: linear(4 * width, width, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (b, s, h) = x.dims3()?;
        let qkv = self.qkv.forward(&self.ln_1.forward(x)?)?;
        let part = |i: usize| {
            qkv.narrow(D::Minus1, i * h, h)?.reshape((b, s, self.heads, h / self.heads))?.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? * (1.0 / ((h / self.heads) as f64).sqrt()))?.broadcast_add(mask)?;
        let y = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let x = (x + self.proj.forward(&y.transpose(1, 2)?.reshape((b, s, h))?)?)?;
        let up = self.up.forward(&self.ln_2.forward(&x)?)?.gelu()?;
        x + self.down.forward(&up)?
    }
}

struct Gpt2 {
    tokens: Embedding,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
}

impl Gpt2 {
    fn new(s: &Sizes, vb: &VarBuilder) -> Result<Self> {
        let table = |rows, name| vb.get_with_hints((rows, s.width), name, Init::Randn { mean: 0.0, stdev: 0.02 });
        Ok(Self {
            tokens: Embedding::new(table(s.vocab, "tokens")?, s.width),
            positions: table(s.positions, "positions")?,
            blocks: (0..s.layers).map(|i| Block::new(s.width, s.heads, vb.pp(i))).collect::<Result<_>>()?,
            norm: Norm::new(s.width, vb.pp("norm"))?,
        })
    }

    fn loss(&self, tokens: &Tensor, targets: &Tensor, mask: &Tensor) -> Result<Tensor> {
        let (_, s) = tokens.dims2()?;
        let mut x = self.tokens.forward(tokens)?.broadcast_add(&self.positions.narrow(0, 0, s)?)?;
        for block in &self.blocks {
            x = block.forward(&x, mask)?;
        }
        let x = self.norm.forward(&x)?.flatten(0, 1)?;
        let logits = x.matmul(&self.tokens.embeddings().t()?)?;
        loss::cross_entropy(&logits, targets)
    }
}

/// 0 where a position may look, minus infinity where it may not.
fn causal_mask(s: usize) -> Result<Tensor> {
    let values: Vec<f32> =
        (0..s).flat_map(|i| (0..s).map(move |j| if j > i { f32::NEG_INFINITY } else { 0.0 })).collect();
    Tensor::from_vec(values, (s, s), &Device::Cpu)
}

fn main() -> Result<()> {
    let sizes = Sizes::from_args();
    assert_eq!(sizes.precision, "fp32", "this peer trains in fp32 only");
    let (tokens, targets) = sizes.tokens();
    let tokens = Tensor::from_vec(tokens, (sizes.batch, sizes.seq_len), &Device::Cpu)?;
    let targets = Tensor::from_vec(targets, sizes.batch * sizes.seq_len, &Device::Cpu)?;
    let mask = causal_mask(sizes.seq_len)?;
    meter::measure("0.11.1", &sizes, || {
        let vars = VarMap::new();
        let model = Gpt2::new(&sizes, &VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu)).expect("a model");
        let all: Vec<Var> = vars.all_vars();
        let parameters = all.iter().map(|v| v.elem_count()).sum();
        let params = ParamsAdamW { lr: 3e-4, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };
        let mut optimizer = AdamW::new(all, params).expect("an optimizer");
        (parameters, move || {
            let loss = model.loss(&tokens, &targets, &mask).expect("forward");
            optimizer.backward_step(&loss).expect("backward and update");
            loss.to_scalar::<f32>().expect("a number").into()
        })
    });
    Ok(())
}
