//! The elements of matrices that are as far down as across.

use super::{Axis, Layout, signed, stepped};
use crate::error::{Error, Result};

impl Layout {
    /// The diagonal of two dimensions, which go; a new last one goes along it. It begins `offset` elements along the
    /// second, or, below zero, as many along the first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when an axis does not exist, or both are one.
    pub fn diagonal(
        &self,
        offset: isize,
        first: impl Into<Axis>,
        second: impl Into<Axis>,
    ) -> Result<Self> {
        let first = first.into().of("diagonal", &self.shape)?;
        let second = second.into().of("diagonal", &self.shape)?;
        if first == second {
            let problem = format!("axis {first} of shape {} is named twice", self.shape);
            return Err(Error::invalid("diagonal", problem));
        }
        let across = offset.max(0).unsigned_abs();
        let down = offset.min(0).unsigned_abs();
        let left = |axis: usize, skipped: usize| self.shape[axis].saturating_sub(skipped);
        let length = left(first, down).min(left(second, across));
        let mut diagonal = self.without(|axis| axis == first || axis == second);
        let step = self.strides[first].saturating_add(self.strides[second]);
        diagonal.shape = diagonal.shape.iter().copied().chain([length]).collect();
        diagonal.strides.push(stepped(length, step));
        diagonal.offset = match diagonal.elements() {
            // Without elements it means nothing.
            0 => 0,
            _ => {
                let start = |axis: usize, skipped: usize| {
                    self.strides[axis].saturating_mul(signed(skipped))
                };
                let start = start(first, down).saturating_add(start(second, across));
                self.offset.saturating_add_signed(start)
            }
        };
        Ok(diagonal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    /// Beside all places of the base that are so.
    #[test]
    fn diagonals_of_all_offsets() -> Result<()> {
        let base = Layout::contiguous([3, 4, 5]);
        let flipped = base.flip(&[0, 2])?;
        let slice = base.slice(&[(1..3).into(), (..).into(), (1..4).into()])?;
        for layout in [base, flipped, slice] {
            for [first, second] in [[0, 1], [1, 0], [0, 2], [2, 1]] {
                for offset in -6isize..7 {
                    let diagonal = layout.diagonal(offset, first, second)?;
                    // With the two axes last.
                    let other = 3 - first - second;
                    let turned = layout.permute(&[other, first, second])?;
                    let [outer, rows, columns] = turned.shape()[..] else {
                        panic!("three axes");
                    };
                    let all: Vec<usize> = turned.indices().collect();
                    let mut want = Vec::new();
                    for at in 0..outer {
                        for row in 0..rows as isize {
                            if (0..columns as isize).contains(&(row + offset)) {
                                let place = (at * rows) as isize + row;
                                want.push(all[(place * columns as isize + row + offset) as usize]);
                            }
                        }
                    }
                    assert!(diagonal.indices().eq(want.iter().copied()));
                    assert_eq!(diagonal.shape(), &Shape::from([outer, want.len() / outer]));
                    assert!(diagonal.is_distinct());
                    if want.is_empty() {
                        assert_eq!([diagonal.end(), diagonal.offset()], [0; 2]);
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn bad_diagonals_are_errors() {
        let base = Layout::contiguous([3, 4]);
        assert!(base.diagonal(0, 0, 0).is_err() && base.diagonal(0, 0, -2).is_err());
        assert!(base.diagonal(0, 0, 2).is_err());
        assert!(Layout::contiguous([3]).diagonal(0, 0, 1).is_err());
        let huge = Layout::contiguous([4, 1 << 40, 1 << 40]);
        assert!(huge.diagonal(-2, 0, 1).is_ok() && huge.diagonal(1 << 39, 0, 1).is_ok());
        for offset in [isize::MIN, isize::MAX] {
            assert_eq!(base.diagonal(offset, 0, 1).unwrap().elements(), 0);
        }
    }
}
