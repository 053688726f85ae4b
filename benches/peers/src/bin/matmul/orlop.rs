//! orlop on one device, in f32 or f16.

use orlop::{DType, Device, Tensor};

use crate::peer::{Peer, Run};
use crate::shapes::{Operands, Problem};

/// Plain, and with cooperative matrices.
pub const NAMES: [&str; 2] = ["orlop", "cooperative"];

pub struct Orlop {
    device: Device,
    dtype: DType,
}

impl Orlop {
    pub fn on(device: Device, dtype: DType) -> Self {
        Self { device, dtype }
    }
}

impl Peer for Orlop {
    fn name(&self) -> &'static str {
        let matrices = self.device.capabilities().cooperative_matrices;
        NAMES[usize::from(matrices.edge(self.dtype).is_some())]
    }

    fn prepare<'a>(
        &'a mut self,
        problem: &Problem,
        operands: &'a Operands,
    ) -> Option<Box<dyn Run + 'a>> {
        let Problem {
            batch,
            m,
            k,
            n,
            turned,
        } = *problem;
        let sizes = |rows, columns| match batch {
            1 => vec![rows, columns],
            _ => vec![batch, rows, columns],
        };
        let make = |values: &[f32], rows, columns| {
            let made = Tensor::from_slice(&self.device, values, sizes(rows, columns));
            let cast = made.and_then(|made| made.cast(self.dtype));
            cast.unwrap_or_else(|error| crate::fail(&error.to_string()))
        };
        let a = match turned {
            true => {
                let a = make(&operands.a, k, m);
                let turned = a.transpose(a.rank() - 2, a.rank() - 1);
                turned.unwrap_or_else(|error| crate::fail(&error.to_string()))
            }
            false => make(&operands.a, m, k),
        };
        let b = make(&operands.b, k, n);
        Some(Box::new(Ready {
            device: &self.device,
            a,
            b,
        }))
    }
}

struct Ready<'a> {
    device: &'a Device,
    a: Tensor,
    b: Tensor,
}

impl Ready<'_> {
    fn multiply(&self) -> Tensor {
        self.a
            .matmul(&self.b)
            .unwrap_or_else(|error| panic!("orlop: {error}"))
    }
}

impl Run for Ready<'_> {
    fn run(&mut self, times: usize) {
        for _ in 0..times {
            self.multiply();
        }
        self.device
            .synchronize()
            .unwrap_or_else(|error| panic!("orlop: {error}"));
    }

    fn result(&mut self) -> Vec<f32> {
        self.multiply()
            .cast(DType::F32)
            .and_then(|product| product.to_vec())
            .unwrap_or_else(|error| panic!("orlop: {error}"))
    }
}
