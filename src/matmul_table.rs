//! Kernels that were measured to be best on an adapter: what `examples/tune` finds, a program ships
//! and [`DeviceBuilder::matmul_table`](crate::DeviceBuilder::matmul_table) takes. Plain data; as TOML
//! in `toml.rs`.

#[cfg(feature = "matmul-table")]
mod toml;

use std::ops::RangeInclusive;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::matmul_kernel::MatmulKernel;

/// Kernels for matrix products by adapter, driver and size, that go before the plan's own rules.
/// Nothing is in it that was not put there: orlop never tunes by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatmulTable {
    adapters: Vec<Adapter>,
}

/// The choices for one adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Adapter {
    name: String,
    /// Any driver without it.
    driver: Option<String>,
    choices: Vec<MatmulChoice>,
}

/// One measured choice: products of these sizes take that kernel, where it can do them. Not `#[non_exhaustive]`: programs
/// that measure write it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MatmulChoice {
    /// Of both operands and the result.
    pub dtype: DType,
    /// Rows of the result. A row times a matrix is turned round before: `n` is 1 then.
    pub m: RangeInclusive<usize>,
    /// Terms of each sum.
    pub k: RangeInclusive<usize>,
    /// Columns of the result.
    pub n: RangeInclusive<usize>,
    /// Products side by side.
    pub batches: RangeInclusive<usize>,
    /// Neighbours of the left operand lie along k (rows, `true`) or m (columns); `None` for both.
    pub a_along_k: Option<bool>,
    /// Neighbours of the right operand lie along k (columns, `true`) or n (rows); `None` for both.
    pub b_along_k: Option<bool>,
    /// How many neighbours of both operands can be loaded as one vector: 8, 4 or 1; `None` for all.
    pub vectors: Option<u32>,
    /// What multiplies.
    pub kernel: MatmulKernel,
    /// Into how many parts k is split, side by side: 1 to 1024. Of f32, f16 and bf16; others are not split.
    pub split: u32,
}

const OP: &str = "matmul_table";
/// What a range may begin with: files have numbers of 63 bits.
const LARGEST: u64 = 1 << 62;

/// Parts that k is split in, at most.
pub(crate) const MOST_SPLIT: u32 = 1024;

/// Every size.
pub(crate) const ANY: RangeInclusive<usize> = 0..=usize::MAX;

impl MatmulChoice {
    /// `kernel` for products of `dtype`, of any size and layout: narrow the fields as needed.
    pub fn new(dtype: DType, kernel: MatmulKernel) -> Self {
        Self {
            dtype,
            m: ANY,
            k: ANY,
            n: ANY,
            batches: ANY,
            a_along_k: None,
            b_along_k: None,
            vectors: None,
            kernel,
            split: 1,
        }
    }

    /// # Errors
    /// What no product is like.
    fn check(&self) -> std::result::Result<(), String> {
        if self.dtype == DType::Bool {
            return Err("dtype: there are no products of bool".to_owned());
        }
        let sizes = [
            ("m", &self.m),
            ("k", &self.k),
            ("n", &self.n),
            ("batches", &self.batches),
        ];
        for (name, sizes) in sizes {
            if sizes.is_empty() || *sizes.start() as u64 > LARGEST {
                return Err(format!("{name}: no size is in {sizes:?}"));
            }
        }
        if let Some(vectors) = self.vectors
            && ![8, 4, 1].contains(&vectors)
        {
            return Err(format!("vectors of {vectors}: there are 8, 4 and 1"));
        }
        match (1..=MOST_SPLIT).contains(&self.split) {
            true => Ok(()),
            false => Err(format!(
                "split: k in {} parts, 1 to {MOST_SPLIT} can be",
                self.split
            )),
        }
    }
}

impl MatmulTable {
    /// A table of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a choice for the adapters of this name, as [`Device::list`](crate::Device::list) tells
    /// it, with this driver; with any driver without one.
    ///
    /// # Errors
    /// `InvalidArgument` for a range without sizes or that begins above 2^62, for `vectors` other than 8, 4
    /// and 1, for bool: no product is like that; for a `split` outside of 1 to 1024.
    pub fn push(
        &mut self,
        adapter: &str,
        driver: Option<&str>,
        choice: MatmulChoice,
    ) -> Result<()> {
        choice
            .check()
            .map_err(|problem| Error::invalid(OP, problem))?;
        self.append(adapter, driver, choice);
        Ok(())
    }

    fn append(&mut self, adapter: &str, driver: Option<&str>, choice: MatmulChoice) {
        let known = self
            .adapters
            .iter_mut()
            .find(|known| known.name == adapter && known.driver.as_deref() == driver);
        match known {
            Some(known) => known.choices.push(choice),
            None => self.adapters.push(Adapter {
                name: adapter.to_owned(),
                driver: driver.map(str::to_owned),
                choices: vec![choice],
            }),
        }
    }

    /// Appends another table.
    pub fn extend(&mut self, other: MatmulTable) {
        for Adapter {
            name,
            driver,
            choices,
        } in other.adapters
        {
            for choice in choices {
                self.append(&name, driver.as_deref(), choice);
            }
        }
    }

    /// The adapters that it has choices for, in the order in which they were put in: the name of each, with its driver, or `None`
    /// for any driver.
    pub fn adapters(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        let adapters = self.adapters.iter();
        adapters.map(|known| (known.name.as_str(), known.driver.as_deref()))
    }

    /// The choices for an adapter and its driver: those for this driver first, then those for any,
    /// in the order in which they were put in. The first that matches a product decides.
    pub fn choices(&self, adapter: &str, driver: &str) -> Vec<MatmulChoice> {
        let of = |wanted: Option<&str>| {
            self.adapters
                .iter()
                .filter(move |known| known.name == adapter && known.driver.as_deref() == wanted)
                .flat_map(|known| known.choices.iter().cloned())
                .collect::<Vec<_>>()
        };
        let mut choices = of(Some(driver));
        choices.extend(of(None));
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_its_own_comes_first() {
        let [first, second, ..] = MatmulKernel::all() else {
            unreachable!()
        };
        let choice = |&kernel| MatmulChoice::new(DType::F32, kernel);
        let mut table = MatmulTable::new();
        table.push("one", None, choice(first)).unwrap();
        table.push("one", Some("driver 7"), choice(second)).unwrap();
        table.push("other", None, choice(second)).unwrap();
        let found = |adapter, driver| -> Vec<_> {
            let choices = table.choices(adapter, driver).into_iter();
            choices.map(|choice| choice.kernel).collect()
        };
        assert_eq!(found("one", "driver 7"), [*second, *first]);
        assert_eq!(found("one", "driver 8"), [*first]);
        assert_eq!(found("other", "driver 7"), [*second]);
        assert_eq!(found("none", "driver 7"), []);
        let adapters: Vec<_> = table.adapters().collect();
        let wanted = [("one", None), ("one", Some("driver 7")), ("other", None)];
        assert_eq!(adapters, wanted);
        for wrong in [
            MatmulChoice {
                m: RangeInclusive::new(3, 2),
                ..choice(first)
            },
            MatmulChoice {
                batches: usize::MAX..=usize::MAX,
                ..choice(first)
            },
            MatmulChoice {
                vectors: Some(3),
                ..choice(first)
            },
            MatmulChoice {
                split: 0,
                ..choice(first)
            },
            MatmulChoice::new(DType::Bool, *first),
        ] {
            let before = table.clone();
            assert!(table.push("one", None, wrong).is_err());
            assert_eq!(table, before);
        }
    }
}
