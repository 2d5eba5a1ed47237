//! Training steps of a GPT-2 in burn on its CPU backend `flex`.

use burn::module::{Initializer, Module, Param};
use burn::nn::activation::Gelu;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Device, Int, Tensor, TensorData};
use meter::Sizes;

#[derive(Module, Debug)]
struct Block {
    heads: usize,
    ln_1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    ln_2: LayerNorm,
    up: Linear,
    gelu: Gelu,
    down: Linear,
}

impl Block {
    fn new(width: usize, heads: usize, device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            heads,
            ln_1: LayerNormConfig::new(width).init(device),
            qkv: linear(width, 3 * width),
            proj: linear(width, width),
            ln_2: LayerNormConfig::new(width).init(device),
            up: linear(width, 4 * width),
            gelu: Gelu::new_approximate(),
            down: linear(4 * width, width),
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [b, s, h] = x.dims();
        let qkv = self.qkv.forward(self.ln_1.forward(x.clone()));
        let part = |i: usize| {
            let all = qkv.clone().narrow(2, i * h, h);
            all.reshape([b, s, self.heads, h / self.heads]).swap_dims(1, 2)
        };
        let options = AttentionModuleOptions { is_causal: true, ..Default::default() };
        let y = attention(part(0), part(1), part(2), None, None, options);
        let x = x + self.proj.forward(y.swap_dims(1, 2).reshape([b, s, h]));
        let up = self.gelu.forward(self.up.forward(self.ln_2.forward(x.clone())));
        x + self.down.forward(up)
    }
}

#[derive(Module, Debug)]
struct Gpt2 {
    tokens: Embedding,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(s: &Sizes, device: &Device) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: 0.02 };
        Self {
            tokens: EmbeddingConfig::new(s.vocab, s.width).with_initializer(normal.clone()).init(device),
            positions: normal.init([s.positions, s.width], device),
            blocks: (0..s.layers).map(|_| Block::new(s.width, s.heads, device)).collect(),
            norm: LayerNormConfig::new(s.width).init(device),
        }
    }

    fn loss(&self, tokens: Tensor<2, Int>, targets: Tensor<1, Int>, criterion: &CrossEntropyLoss) -> Tensor<1> {
        let [b, s] = tokens.dims();
        let mut x = self.tokens.forward(tokens) + self.positions.val().narrow(0, 0, s).unsqueeze();
        for block in &self.blocks {
            x = block.forward(x);
        }
        let [_, _, h] = x.dims();
        let x = self.norm.forward(x).reshape([b * s, h]);
        criterion.forward(x.matmul(self.tokens.weight.val().transpose()), targets)
    }
}

fn main() {
    let sizes = Sizes::from_args();
    assert_eq!(sizes.precision, "fp32", "this peer trains in fp32 only");
    let device = Device::flex().autodiff();
    let (b, s) = (sizes.batch, sizes.seq_len);
    let (tokens, targets) = sizes.tokens();
    let ints = |ids: Vec<u32>| ids.into_iter().map(i64::from).collect::<Vec<i64>>();
    let tokens = Tensor::<2, Int>::from_data(TensorData::new(ints(tokens), [b, s]), &device);
    let targets = Tensor::<1, Int>::from_data(TensorData::new(ints(targets), [b * s]), &device);
    meter::measure("0.22.1", &sizes, || {
        let first = Gpt2::new(&sizes, &device);
        let parameters = first.num_params();
        let criterion = CrossEntropyLossConfig::new().init(&device);
        let mut optimizer = AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.1).init();
        let mut model = Some(first);
        (parameters, move || {
            let current = model.take().expect("put back after each step");
            let loss = current.loss(tokens.clone(), targets.clone(), &criterion);
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            model = Some(optimizer.step(3e-4, current, gradients));
            f64::from(loss.into_scalar::<f32>())
        })
    });
}
