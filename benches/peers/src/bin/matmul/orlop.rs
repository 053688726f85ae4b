//! orlop on one device.

use orlop::{Device, Tensor};

use crate::peer::{Peer, Run};
use crate::shapes::{Operands, Problem};

pub struct Orlop(pub Device);

impl Peer for Orlop {
    fn name(&self) -> &'static str {
        "orlop"
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
        let a = match turned {
            true => {
                let a = Tensor::from_slice(&self.0, &operands.a, sizes(k, m)).ok()?;
                a.transpose(a.rank() - 2, a.rank() - 1).ok()?
            }
            false => Tensor::from_slice(&self.0, &operands.a, sizes(m, k)).ok()?,
        };
        let b = Tensor::from_slice(&self.0, &operands.b, sizes(k, n)).ok()?;
        Some(Box::new(Ready {
            device: &self.0,
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
            .to_vec()
            .unwrap_or_else(|error| panic!("orlop: {error}"))
    }
}
