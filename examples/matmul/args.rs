//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use orlop::DType;

/// Multiplies two matrices and reports speed, error, transfer times and memory.
///
/// Without files the matrices are random (fixed seeds), --size by --size unless --m, --k or --n
/// say otherwise. Exit code: 0 when every checked entry is within its bound, 1 when not, 2 for
/// whatever kept the product from being computed.
#[derive(Parser, Debug)]
#[command(name = "matmul", version, verbatim_doc_comment)]
pub struct Args {
    /// Left operand: a NumPy file of f2, f4, f8, i4 or u4, in C or Fortran order; vectors and
    /// batches as in numpy.matmul
    #[arg(long, value_name = "A.npy", requires = "b")]
    pub a: Option<PathBuf>,
    /// Right operand
    #[arg(long, value_name = "B.npy", requires = "a")]
    pub b: Option<PathBuf>,
    /// Where the product goes, as a NumPy file
    #[arg(long, value_name = "C.npy")]
    pub out: Option<PathBuf>,
    /// cpu, gpu:0, soft:1, or a piece of a name (nvidia, lavapipe); default: $ORLOP_DEVICE, else
    /// the best GPU, else the native CPU
    #[arg(long, value_name = "SELECTOR")]
    pub device: Option<String>,
    /// Rows and columns of both matrices
    #[arg(long, default_value_t = 1024, conflicts_with = "a")]
    pub size: usize,
    /// Rows of the left matrix
    #[arg(long, conflicts_with = "a")]
    pub m: Option<usize>,
    /// Columns of the left matrix, rows of the right one
    #[arg(long, conflicts_with = "a")]
    pub k: Option<usize>,
    /// Columns of the right matrix
    #[arg(long, conflicts_with = "a")]
    pub n: Option<usize>,
    /// What to compute in; files of another dtype are cast (default: f32, or that of the files)
    #[arg(long)]
    pub dtype: Option<Computed>,
    /// Let f16 products use cooperative matrices (tensor cores), where the device has some
    #[arg(long)]
    pub cooperative: bool,
    /// Timed runs, each of as many products as take 10 ms; their median is reported, after products that are not timed
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub repeat: u32,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,
}

/// The dtypes by their names on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Computed {
    /// 32-bit float
    F32,
    /// 16-bit float, summed in f32
    F16,
    /// 64-bit float
    F64,
    /// 32-bit signed integer, wrapping
    I32,
    /// 32-bit unsigned integer, wrapping
    U32,
}

impl From<Computed> for DType {
    fn from(computed: Computed) -> DType {
        match computed {
            Computed::F32 => DType::F32,
            Computed::F16 => DType::F16,
            Computed::F64 => DType::F64,
            Computed::I32 => DType::I32,
            Computed::U32 => DType::U32,
        }
    }
}
