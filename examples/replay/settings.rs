//! The arguments' own words.

use std::str::FromStr;

use orlop::memory::{Growth, WhenFull};

use crate::cli::bytes;

/// `--growth`.
#[derive(Clone, Copy, Debug)]
pub struct Growing(pub Growth);

impl FromStr for Growing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (policy, size) = match text.split_once(':') {
            Some((policy, size)) => (policy, Some(size)),
            None => (text, None),
        };
        Ok(Growing(match (policy, size) {
            ("proportional", None) => Growth::Proportional,
            ("budget", None) => Growth::Budget,
            ("preallocate", Some(share)) if share.contains('.') => {
                let fraction: f64 = share
                    .parse()
                    .map_err(|_| format!("`{share}` is no fraction"))?;
                if !(fraction > 0.0 && fraction <= 1.0) {
                    return Err(format!("{share} is not above 0 and at most 1"));
                }
                Growth::Preallocate { fraction }
            }
            ("preallocate", Some(size)) => Growth::PreallocateBytes {
                bytes: bytes(size)?,
            },
            ("step", Some(size)) => Growth::Step {
                bytes: bytes(size)?,
            },
            ("doubling", Some(size)) => Growth::Doubling {
                first: bytes(size)?,
            },
            ("doubling", None) => Growth::Doubling { first: 2 << 20 },
            _ => {
                return Err(
                    "not one of proportional, budget, preallocate:BYTES, preallocate:0.9, step:BYTES, \
                     doubling:BYTES"
                        .to_owned(),
                );
            }
        }))
    }
}

/// `--limit`.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    Bytes(u64),
    /// Of the peak of the bytes in use.
    Times(f64),
}

impl Limit {
    pub fn bytes(self, peak_live: u64) -> u64 {
        match self {
            Limit::Bytes(bytes) => bytes,
            Limit::Times(factor) => (peak_live as f64 * factor) as u64,
        }
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('x') {
            Some(factor) => match factor.parse() {
                Ok(factor) if factor > 0.0 && f64::is_finite(factor) => Ok(Limit::Times(factor)),
                _ => Err(format!("`{factor}` is no factor")),
            },
            None => bytes(text).map(Limit::Bytes),
        }
    }
}

/// `--when-full`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Full {
    /// Live blocks are moved together
    Relocate,
    /// And what is not enough goes to the host
    Spill,
    /// The allocation fails
    Fail,
}

impl Full {
    pub fn setting(self) -> WhenFull {
        match self {
            Full::Relocate => WhenFull::Relocate,
            Full::Spill => WhenFull::SpillToHost { most: None },
            Full::Fail => WhenFull::Fail,
        }
    }
}
