//! burn on wgpu: the first adapter that it finds, so the caller leaves one.

use burn_tensor::{Device, DeviceKind, Tensor, TensorData};

use crate::peer::{Peer, Run};
use crate::shapes::{Operands, Problem};

pub struct Burn(Device);

impl Burn {
    pub fn open() -> Self {
        Self(Device::wgpu(DeviceKind::DefaultDevice))
    }
}

impl Peer for Burn {
    fn name(&self) -> &'static str {
        "burn-wgpu"
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
        let make = |values: &[f32], rows, columns| {
            let data = TensorData::new(values.to_vec(), [batch, rows, columns]);
            Tensor::<3>::from_data(data, &self.0)
        };
        let a = match turned {
            true => make(&operands.a, k, m).swap_dims(1, 2),
            false => make(&operands.a, m, k),
        };
        let b = make(&operands.b, k, n);
        Some(Box::new(Ready {
            device: &self.0,
            a,
            b,
        }))
    }
}

struct Ready<'a> {
    device: &'a Device,
    a: Tensor<3>,
    b: Tensor<3>,
}

impl Run for Ready<'_> {
    fn run(&mut self, times: usize) {
        let mut last = None;
        for _ in 0..times {
            last = Some(self.a.clone().matmul(self.b.clone()));
        }
        self.device
            .sync()
            .unwrap_or_else(|error| panic!("burn: {error}"));
        drop(last);
    }

    fn result(&mut self) -> Vec<f32> {
        let product = self.a.clone().matmul(self.b.clone());
        product
            .into_data()
            .try_to_vec()
            .unwrap_or_else(|error| panic!("burn: {error:?}"))
    }
}
