//! Plain functions of floats on the CPU where inputs repeat along rows or columns: what is the same along a row stays in
//! the processor's registers, and rows are read where they lie.

use bytemuck::{Pod, cast_slice_mut};
use smallvec::SmallVec;

use super::chain::{Chain, Elements, Role, Rows, Source, roles};
use super::expression::{Expression, Node, Types};
use super::lanes::Lanes;
use super::twin::{BLOCK, stores};
use crate::cpu::parallel::{self, Block, Walk};
use crate::dtype::{DType, ElementBytes};
use crate::layout::Layout;
use crate::road::HostInput;

/// Columns from which on rows of any length are computed one by one.
const LONG: usize = 128;
/// Columns of rows several of which are a step of a chain, where they are a power of two.
const SHORT: usize = 16;
/// Elements of a block, of two of many dimensions, for which what is made ready for each block is not most of the work.
const LEAST_BLOCK: usize = 512;

/// Writes the output of one chain of numbers and of such inputs, and says whether it is that.
pub(super) fn by_rows(
    expression: &Expression,
    types: &Types,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    out: &mut [u8],
) -> bool {
    let dtype = types.last().copied();
    let is_whole = |input: &HostInput<'_>| input.layout.is_contiguous() || is_one(input.layout);
    if inputs.iter().all(is_whole) || types.iter().any(|&other| Some(other) != dtype) {
        return false;
    }
    match dtype {
        Some(DType::F32) => of::<f32>(expression, types, numbers, inputs, out),
        Some(DType::F64) => of::<f64>(expression, types, numbers, inputs, out),
        _ => None,
    }
    .is_some()
}

/// One value for all elements.
pub(super) fn is_one(layout: &Layout) -> bool {
    layout.strides().iter().all(|&stride| stride == 0)
}

fn of<T: Lanes + Pod>(
    expression: &Expression,
    types: &Types,
    numbers: &[ElementBytes],
    inputs: &[HostInput<'_>],
    out: &mut [u8],
) -> Option<()> {
    let layouts: SmallVec<[&Layout; 4]> = inputs.iter().map(|input| input.layout).collect();
    let walk = Walk::new(&layouts);
    let columns = walk.columns();
    let are_rows = columns >= LONG || columns >= SHORT && columns.is_power_of_two();
    let is_neighbour = |&stride: &isize| stride == 0 || stride == 1;
    let are_blocks = walk.block_elements() >= LEAST_BLOCK.min(out.len() / size_of::<T>());
    if !are_rows || !are_blocks || !walk.inner_strides().iter().all(is_neighbour) {
        return None;
    }
    // One chain and nothing else.
    let roles = roles(expression, types);
    let (last, before) = roles.split_last()?;
    let are_others_in_it = expression
        .nodes
        .iter()
        .zip(before)
        .all(|(node, role)| match role {
            Role::Alone => !matches!(node, Node::Apply(..) | Node::Cast(..)),
            Role::Flows => true,
            Role::Ends(_) => false,
        });
    if !are_others_in_it || !matches!(last, Role::Ends(_)) {
        return None;
    }
    let compute = |block: &Block<'_>, out: &mut [T]| {
        let rows: SmallVec<[Rows<'_, T>; 4]> = inputs
            .iter()
            .zip(block.grids)
            .map(|(input, &grid)| Rows {
                elements: input.elements(),
                grid,
            })
            .collect();
        let mut chain = Chain::of_rows(block.columns);
        for node in &expression.nodes {
            let Node::Apply(function, _) = *node else {
                continue;
            };
            let mut sources = [None; 3];
            for (to, &read) in sources.iter_mut().zip(node.reads()) {
                *to = match *expression.nodes.get(usize::from(read))? {
                    Node::Scalar(number) => {
                        let number = numbers.get(usize::from(number))?.as_slice();
                        let number = bytemuck::try_pod_read_unaligned(number).ok()?;
                        Some(Source::Number(number))
                    }
                    Node::Input(at) => {
                        let at = usize::from(at);
                        Some(source(inputs.get(at)?, rows.get(at)?, block)?)
                    }
                    Node::Old => Some(Source::Values(Elements::Old)),
                    Node::Apply(..) | Node::Cast(..) => None,
                };
            }
            chain.push(function, sources);
        }
        chain.run(out);
        Some(())
    };
    let size = size_of::<T>();
    let stores = stores(expression, out.len());
    parallel::elements(out, size, |from, piece| {
        stores.write(piece, BLOCK * size, |first, piece| {
            let out: &mut [T] = cast_slice_mut(piece);
            walk.blocks(from + first / size, out.len(), &mut |block| {
                let out = &mut out[block.first..][..block.rows * block.columns];
                let _ = compute(block, out);
            });
        });
    });
    Some(())
}

/// An input's elements in a block. What is one value for all is a number, here and in all other blocks.
fn source<'a, T: Pod>(
    input: &HostInput<'_>,
    rows: &'a Rows<'a, T>,
    block: &Block<'_>,
) -> Option<Source<'a, T>> {
    let Rows { elements, grid } = *rows;
    let (start, count) = (grid.start as usize, block.rows * block.columns);
    if is_one(input.layout) {
        return Some(Source::Number(*elements.get(start)?));
    }
    let follow = grid.row == block.columns as isize || block.rows == 1;
    Some(Source::Values(match grid.column == 1 && follow {
        true => Elements::InOrder(elements.get(start..start + count)?),
        false => Elements::Rows(rows),
    }))
}
