//! The open batch as data: what was recorded since the last submission, in program order. It is
//! encoded when it is submitted, and encoded again one by one when the device refuses it.

use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use smallvec::SmallVec;

use super::block::GpuBlock;
use super::pipelines::CompiledKernel;
use super::templates::ParamsSpace;
use super::texels::TexelStore;
use crate::error::Error;
use crate::launch::{Dispatch, TEXEL_BYTES, TexelCopy};
use crate::memory::BlockId;

/// Alignment of uniform bindings that every adapter accepts.
const UNIFORM_ALIGNMENT: u64 = 256;

/// Where the error of a command is left.
pub(crate) enum Target {
    /// The block that the command writes. Weak, so that a dropped tensor's memory is free at once.
    Block(BlockId, Weak<GpuBlock>),
    /// Somebody who waits for a copy to the host.
    Host(Arc<OnceLock<Error>>),
}

impl Target {
    pub(crate) fn block(block: &Arc<GpuBlock>) -> Self {
        Target::Block(block.id(), Arc::downgrade(block))
    }

    /// The first error stays.
    pub(super) fn mark(&self, error: &Error) {
        match self {
            Target::Block(id, block) => {
                if let Some(block) = block.upgrade() {
                    block.mark(*id, error);
                }
            }
            Target::Host(slot) => {
                let _ = slot.set(error.clone());
            }
        }
    }
}

/// What a command is called, reads and writes: so that an error reaches what depends on it, and
/// nothing else.
pub(crate) struct Effect {
    pub label: &'static str,
    pub reads: SmallVec<[BlockId; 4]>,
    pub writes: Target,
}

pub(crate) enum Work {
    Dispatch {
        kernel: Arc<CompiledKernel>,
        operands: wgpu::BindGroup,
        /// The device's texels, for kernels that read them.
        texels: Option<wgpu::BindGroup>,
        /// Its params among the batch's words.
        words: Range<usize>,
        groups: [u32; 3],
    },
    Copy {
        from: (wgpu::Buffer, u64),
        to: (wgpu::Buffer, u64),
        bytes: u64,
    },
    /// Rows of a buffer, from a place in it, into the device's texels.
    Texels {
        from: (wgpu::Buffer, u64),
        to: wgpu::Texture,
        copy: TexelCopy,
    },
}

pub(crate) struct Command {
    pub work: Work,
    /// Which of the batch's effects it has: the dispatches of one launch share one.
    pub effect: usize,
}

#[derive(Default)]
pub(crate) struct Batch {
    pub commands: Vec<Command>,
    pub effects: Vec<Effect>,
    /// Params of all dispatches, one after another.
    pub words: Vec<u32>,
    pub dispatches: usize,
    /// Bytes copied by the batch.
    pub copied_bytes: u64,
    /// Bytes of uniform slots that its dispatches take.
    pub uniform_bytes: u64,
    /// Estimated seconds on the device.
    pub seconds: f64,
}

impl Batch {
    /// Bytes of the uniform slot of `words` params.
    pub(crate) fn uniform_slot(words: usize) -> u64 {
        (words as u64 * 4).next_multiple_of(UNIFORM_ALIGNMENT)
    }

    pub(crate) fn dispatch(
        &mut self,
        kernel: &Arc<CompiledKernel>,
        operands: &wgpu::BindGroup,
        texels: Option<&TexelStore>,
        dispatch: &Dispatch,
        effect: usize,
    ) {
        let first = self.words.len();
        self.words.extend_from_slice(&dispatch.words);
        if kernel.space == ParamsSpace::Uniform {
            self.uniform_bytes += Self::uniform_slot(dispatch.words.len());
        }
        self.dispatches += 1;
        self.commands.push(Command {
            work: Work::Dispatch {
                kernel: Arc::clone(kernel),
                operands: operands.clone(),
                texels: texels.map(|store| store.group.clone()),
                words: first..self.words.len(),
                groups: dispatch.groups,
            },
            effect,
        });
    }

    pub(crate) fn copy(
        &mut self,
        from: (wgpu::Buffer, u64),
        to: (wgpu::Buffer, u64),
        bytes: u64,
        effect: Effect,
    ) {
        let effect = self.effect(effect);
        self.copied_bytes += bytes;
        self.commands.push(Command {
            work: Work::Copy { from, to, bytes },
            effect,
        });
    }

    pub(crate) fn copy_to_texels(
        &mut self,
        from: &(wgpu::Buffer, u64),
        to: &wgpu::Texture,
        copy: TexelCopy,
        effect: usize,
    ) {
        self.copied_bytes += u64::from(copy.width) * u64::from(copy.rows) * TEXEL_BYTES;
        self.commands.push(Command {
            work: Work::Texels {
                from: from.clone(),
                to: to.clone(),
                copy,
            },
            effect,
        });
    }

    /// Adds what following commands do; gives the number that they name it by.
    pub(crate) fn effect(&mut self, effect: Effect) -> usize {
        self.effects.push(effect);
        self.effects.len() - 1
    }

    /// Forgets everything and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.commands.clear();
        self.effects.clear();
        self.words.clear();
        self.dispatches = 0;
        self.copied_bytes = 0;
        self.uniform_bytes = 0;
        self.seconds = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use crate::capabilities::Capabilities;
    use crate::device::Device;
    use crate::dtype::DType;
    use crate::error::{Error, Result};
    use crate::gpu::templates::PAGE;
    use crate::launch::{Dispatch, KernelKey, Launch, Launches};
    use crate::road::{self, HostInput, HostOutput, Op, Operand, Problem};
    use crate::shape::Shape;
    use crate::tensor::Tensor;

    /// Reads a page of 1,024 words, so many times: an operand with less is a wrong binding.
    struct Page(usize);

    impl Op for Page {
        fn name(&self) -> &'static str {
            "page"
        }

        fn infer(&self, _inputs: &[Operand<'_>]) -> Result<(Shape, DType)> {
            Ok((Shape::from([1]), DType::U32))
        }

        fn plan(&self, problem: &Problem<'_>, _capabilities: &Capabilities) -> Result<Launches> {
            Ok(smallvec![Launch {
                kernel: KernelKey {
                    template: PAGE.0,
                    values: smallvec![],
                    bindings: 2,
                    words: 1,
                },
                operands: problem.bindings(),
                texels: smallvec![],
                dispatches: smallvec![
                    Dispatch {
                        words: smallvec![7],
                        groups: [1, 1, 1],
                    };
                    self.0
                ],
                flops: 0.0,
                bytes: 0.0,
            }])
        }

        fn twin(&self, _inputs: &[HostInput<'_>], _output: &mut HostOutput<'_>) -> Result<()> {
            Ok(())
        }
    }

    /// On every adapter that is there, params in immediates and in uniforms.
    #[test]
    fn one_bad_dispatch_spoils_its_own_results_only() {
        let adapters = Device::list().unwrap();
        for info in adapters.iter().filter(|info| info.backend != "native") {
            for immediates in [true, false] {
                let device = Device::builder()
                    .select(&info.selector)
                    .immediates(immediates)
                    .build()
                    .unwrap();
                let numbers: Vec<u32> = (0..1024).collect();
                let page = Tensor::from_slice(&device, &numbers, [1024]).unwrap();
                let one = Tensor::from_slice(&device, &[1u32], [1]).unwrap();
                assert_eq!(
                    road::run(&Page(1), &[&page])
                        .unwrap()
                        .item::<u32>()
                        .unwrap(),
                    7
                );

                let mut good = vec![one.clone()];
                let mut bad = None;
                let target = Tensor::zeros(&device, [4], DType::U32).unwrap();
                for i in 0..100 {
                    good.push(good[i].add(&one).unwrap());
                    if i == 50 {
                        let wrong = road::run(&Page(1), &[&one]).unwrap();
                        let late = Tensor::from_slice(&device, &[9u32, 9], [2]).unwrap();
                        let dependent = wrong.add(&one).unwrap();
                        target.slice(1..2).unwrap().fill(5).unwrap();
                        bad = Some((wrong, dependent.mul(&late).unwrap(), dependent, late));
                    }
                }
                let (wrong, farther, dependent, late) = bad.unwrap();
                let failure = device.synchronize();
                assert!(
                    matches!(&failure, Err(Error::Execution(failed)) if failed.label == "page"),
                    "{info}: {failure:?}"
                );
                assert!(device.synchronize().is_ok());
                for spoilt in [&wrong, &dependent, &farther] {
                    let outcomes = [
                        spoilt.to_vec::<u32>().err(),
                        spoilt.add(&one).err(),
                        pollster::block_on(spoilt.to_vec_async::<u32>()).err(),
                        spoilt.to(&Device::cpu()).err(),
                    ];
                    for error in outcomes {
                        let text = error.map(|error| error.to_string()).unwrap_or_default();
                        // The label, and what was asked and there, in bytes.
                        for part in [&info.selector, "page", "256", "4096"] {
                            assert!(text.contains(part), "{info}: `{part}` is not in {text}");
                        }
                    }
                }
                for (value, tensor) in (1u32..).zip(&good) {
                    assert_eq!(tensor.item::<u32>().unwrap(), value, "{info}");
                }
                assert_eq!(late.to_vec::<u32>().unwrap(), [9, 9]);
                assert_eq!(target.to_vec::<u32>().unwrap(), [0, 5, 0, 0]);
                // More than the uniform buffer holds: its first batch fails while it is recorded.
                device.synchronize().unwrap();
                let many = road::run(&Page(300), &[&one]).unwrap();
                assert!(matches!(many.to_vec::<u32>(), Err(Error::Execution(_))));
                assert!(device.synchronize().is_err());
                drop(many);
                drop((wrong, farther, dependent, late, good, target, page, one));
                assert_eq!(device.memory().allocated, 0);
            }
        }
    }

    #[test]
    fn kernels_that_do_not_compile_say_where() {
        let adapters = Device::list().unwrap();
        for info in adapters.iter().filter(|info| info.backend != "native") {
            let device = Device::select(&info.selector).unwrap();
            let key = |template, element: &'static str| KernelKey {
                template,
                values: smallvec![("element", element.into()), ("rank", 1.into())],
                bindings: 1,
                words: 4,
            };
            let gpu = device.gpu().unwrap();
            for (key, parts) in [
                (key("fill", "f17"), ["fill", "f17", "^"]),
                (key("random", "f32"), ["random", "undefined", "random:"]),
                (key("nowhere", "f32"), ["nowhere", "template", "not"]),
            ] {
                let error = gpu.pipelines.get(&key).err().unwrap();
                assert!(matches!(error, Error::KernelCompile(_)), "{error:?}");
                for part in parts {
                    assert!(error.to_string().contains(part), "`{part}`: {error}");
                }
            }
            // The device goes on.
            let ones = Tensor::ones(&device, [3], DType::F32).unwrap();
            assert_eq!(ones.to_vec::<f32>().unwrap(), [1.0; 3]);
        }
    }
}
