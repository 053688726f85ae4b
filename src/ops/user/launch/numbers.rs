//! The numbers of a launch, as words of its params.

use super::super::call::{What, unknown};
use super::super::op::{self, About, Role, UserOp};
use super::KernelLaunch;
use crate::dtype::DType;
use crate::error::{Error, Result};

impl KernelLaunch<'_> {
    /// Writes the numbers into the words, and notes those that are about operands.
    pub(super) fn params(&self, op: &mut UserOp<'_>) -> Result<()> {
        let kernel = self.kernel;
        let members = &kernel.source.members;
        for (at, (name, _)) in self.scalars.iter().enumerate() {
            if !members.iter().any(|member| member.name == *name) {
                return Err(unknown(kernel.name, &kernel.source, What::Scalar, name));
            }
            if self.scalars[..at].iter().any(|(other, _)| other == name) {
                return Err(Error::invalid(
                    kernel.name,
                    format!("`{name}` is given twice"),
                ));
            }
        }
        for member in members {
            let given = self.scalars.iter().find(|(name, _)| *name == member.name);
            let mut operands = kernel.source.bindings.iter().zip(&op.places);
            let about = operands.find_map(|(binding, &place)| {
                Some((binding, place, op::about(&member.name, &binding.name)?))
            });
            if let Some((name, values)) = given {
                if let Some((operand, ..)) = about {
                    let operand = &operand.name;
                    let problem = format!("`{name}` is given by orlop, from operand `{operand}`");
                    return Err(Error::invalid(kernel.name, problem));
                }
                if values.len() != member.lanes {
                    let (has, given) = (member.lanes, values.len());
                    let problem = format!("`{name}` has {has} numbers, the launch gives {given}");
                    return Err(Error::invalid(kernel.name, problem));
                }
                for (lane, value) in values.iter().enumerate() {
                    let bytes = value.to_bytes(member.dtype).ok_or_else(|| {
                        let problem =
                            format!("`{name}` is {}, which cannot hold {value}", member.dtype);
                        Error::invalid(kernel.name, problem)
                    })?;
                    op.words[member.word + lane] = bytes.words()[0];
                }
                continue;
            }
            let (_, place, about) =
                about.ok_or_else(|| op::not_given(kernel.name, "number", &member.name))?;
            self.check_about(&member.name, (member.dtype, member.lanes), op, place, about)?;
            op.about.push((member.word, place, about));
        }
        self.check_ranks(op)
    }

    /// A strided kernel has as many strides of an input as it handles dimensions.
    fn check_ranks(&self, op: &UserOp<'_>) -> Result<()> {
        let inputs = self.kernel.source.bindings.iter().zip(&op.places);
        for (binding, &place) in inputs {
            let Role::Input(at) = place else { continue };
            let strides = op
                .about
                .iter()
                .filter_map(|&(_, of, about)| match (of, about) {
                    (Role::Input(of), About::Stride(axis)) if of == at => Some(axis + 1),
                    _ => None,
                });
            let (handled, rank) = (strides.max(), op.shapes[at].rank());
            if let Some(handled) = handled.filter(|&handled| handled != rank) {
                let problem = format!(
                    "the kernel has strides of {handled} dimensions for `{}`, which has {rank}",
                    binding.name
                );
                return Err(Error::invalid(self.kernel.name, problem));
            }
        }
        Ok(())
    }

    /// What a number about an operand says must be so.
    fn check_about(
        &self,
        name: &str,
        (dtype, lanes): (DType, usize),
        op: &UserOp<'_>,
        place: Role,
        about: About,
    ) -> Result<()> {
        let shape = match place {
            Role::Input(at) => &op.shapes[at],
            Role::Output(at) => &op.outputs[at].shape,
        };
        let problem = match about {
            _ if dtype == DType::F32 => format!("`{name}` is f32: it is given as u32 or i32"),
            _ if lanes > 1 => format!("`{name}` is a vector: it is given as one u32 or i32"),
            About::Size(axis) | About::Stride(axis) if axis >= shape.rank() => {
                format!("`{name}` asks for axis {axis} of shape {shape}")
            }
            About::Size(_) | About::Stride(_) | About::Offset if !self.kernel.strided => {
                format!("`{name}` is given to kernels that are declared strided()")
            }
            About::Offset | About::Stride(_) if matches!(place, Role::Output(_)) => {
                format!("`{name}`: outputs are row-major from their first element")
            }
            About::Length if shape.elements() > u32::MAX as usize && !self.kernel.elementwise => {
                format!("{} elements overflow `{name}`", shape.elements())
            }
            About::Size(axis) if shape.dims()[axis] > u32::MAX as usize => {
                format!("axis {axis} of shape {shape} overflows `{name}`")
            }
            _ => return Ok(()),
        };
        Err(Error::invalid(self.kernel.name, problem))
    }
}
