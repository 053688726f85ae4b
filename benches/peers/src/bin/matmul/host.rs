//! Those who multiply on the CPU, called directly: the `gemm` crate, faer, OpenBLAS.

use std::ffi::{CStr, c_char, c_float, c_int};
use std::time::Duration;

use crate::peer::{Peer, Run};
use crate::shapes::{Operands, Problem};

/// Multiply-adds up to which a caller would not ask for threads.
const ALONE: usize = 64 * 64 * 64;

fn is_small(problem: &Problem) -> bool {
    problem.m * problem.k * problem.n <= ALONE
}

/// Strides (row, column) of A.
fn left_strides(problem: &Problem) -> (isize, isize) {
    match problem.turned {
        true => (1, problem.m as isize),
        false => (problem.k as isize, 1),
    }
}

/// A call of some library for one matrix of a batch: c, a, b.
struct Host<'a, F> {
    problem: Problem,
    operands: &'a Operands,
    c: Vec<f32>,
    multiply: F,
}

impl<F: FnMut(&Problem, &mut [f32], &[f32], &[f32])> Run for Host<'_, F> {
    fn run(&mut self, times: usize) {
        let Problem { batch, m, k, n, .. } = self.problem;
        for _ in 0..times {
            for at in 0..batch {
                let a = &self.operands.a[at * m * k..][..m * k];
                let b = &self.operands.b[at * k * n..][..k * n];
                let c = &mut self.c[at * m * n..][..m * n];
                (self.multiply)(&self.problem, c, a, b);
            }
        }
    }

    fn result(&mut self) -> Vec<f32> {
        self.run(1);
        self.c.clone()
    }
}

fn host<'a>(
    problem: &Problem,
    operands: &'a Operands,
    multiply: impl FnMut(&Problem, &mut [f32], &[f32], &[f32]) + 'a,
) -> Option<Box<dyn Run + 'a>> {
    Some(Box::new(Host {
        problem: *problem,
        operands,
        c: vec![0.0; problem.batch * problem.m * problem.n],
        multiply,
    }))
}

pub struct Gemm;

impl Peer for Gemm {
    fn name(&self) -> &'static str {
        "gemm"
    }

    fn prepare<'a>(
        &'a mut self,
        problem: &Problem,
        operands: &'a Operands,
    ) -> Option<Box<dyn Run + 'a>> {
        let parallelism = match is_small(problem) {
            true => gemm::Parallelism::None,
            false => gemm::Parallelism::Rayon(0),
        };
        host(problem, operands, move |problem, c, a, b| {
            let Problem { m, k, n, .. } = *problem;
            let (row, column) = left_strides(problem);
            // SAFETY: the slices hold the matrices of these sizes.
            // The row-major product as the transposed of the column-major one, which it prefers.
            unsafe {
                gemm::gemm(
                    n,
                    m,
                    k,
                    c.as_mut_ptr(),
                    n as isize,
                    1,
                    false,
                    b.as_ptr(),
                    n as isize,
                    1,
                    a.as_ptr(),
                    row,
                    column,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
        })
    }
}

pub struct Faer;

impl Peer for Faer {
    fn name(&self) -> &'static str {
        "faer"
    }

    fn prepare<'a>(
        &'a mut self,
        problem: &Problem,
        operands: &'a Operands,
    ) -> Option<Box<dyn Run + 'a>> {
        let par = match is_small(problem) {
            true => faer::Par::Seq,
            false => faer::Par::rayon(0),
        };
        host(problem, operands, move |problem, c, a, b| {
            use faer::mat::{MatMut, MatRef};
            let Problem {
                m, k, n, turned, ..
            } = *problem;
            let a = match turned {
                true => MatRef::from_column_major_slice(a, m, k),
                false => MatRef::from_row_major_slice(a, m, k),
            };
            faer::linalg::matmul::matmul(
                MatMut::from_row_major_slice_mut(c, m, n),
                faer::Accum::Replace,
                a,
                MatRef::from_row_major_slice(b, k, n),
                1.0f32,
                par,
            );
        })
    }
}

type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_float,
    *const c_float,
    c_int,
    *const c_float,
    c_int,
    c_float,
    *mut c_float,
    c_int,
);
type Sgemv = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_float,
    *const c_float,
    c_int,
    *const c_float,
    c_int,
    c_float,
    *mut c_float,
    c_int,
);

const ROW_MAJOR: c_int = 101;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

/// OpenBLAS's names of the processors whose kernels are of 512 bits.
pub const WIDE: [&str; 3] = ["SkylakeX", "Cooperlake", "SapphireRapids"];

/// OpenBLAS, if the system has it.
pub struct OpenBlas {
    sgemm: Sgemm,
    sgemv: Sgemv,
    set_threads: unsafe extern "C" fn(c_int),
    library: libloading::Library,
}

impl OpenBlas {
    pub fn open() -> Option<Self> {
        let names = [
            "libopenblas.so.0",
            "libopenblas.so",
            "libopenblas.dylib",
            "openblas.dll",
        ];
        // SAFETY: the library's initialisers do no more than any program's that links it, and the
        // functions have the types of its header (32-bit integers).
        unsafe {
            let library = names
                .iter()
                .find_map(|name| libloading::Library::new(name).ok())?;
            let sgemm: Sgemm = *library.get(b"cblas_sgemm\0").ok()?;
            let sgemv: Sgemv = *library.get(b"cblas_sgemv\0").ok()?;
            let set_threads: unsafe extern "C" fn(c_int) =
                *library.get(b"openblas_set_num_threads\0").ok()?;
            Some(Self {
                sgemm,
                sgemv,
                set_threads,
                library,
            })
        }
    }

    /// The processor whose kernels it has taken.
    pub fn core(&self) -> Option<String> {
        // SAFETY: the function has the type of its header, and its text is a constant of the library.
        unsafe {
            let name: unsafe extern "C" fn() -> *const c_char =
                *self.library.get(b"openblas_get_corename\0").ok()?;
            let name = name();
            (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
        }
    }
}

impl Peer for OpenBlas {
    fn name(&self) -> &'static str {
        "OpenBLAS"
    }

    /// 2^28 cycles, by default.
    fn spins(&self) -> Duration {
        Duration::from_millis(120)
    }

    fn prepare<'a>(
        &'a mut self,
        problem: &Problem,
        operands: &'a Operands,
    ) -> Option<Box<dyn Run + 'a>> {
        let threads = match is_small(problem) {
            true => 1,
            false => std::thread::available_parallelism().map_or(1, usize::from),
        };
        let (sgemm, sgemv) = (self.sgemm, self.sgemv);
        // SAFETY: a number, and nothing of it runs now.
        unsafe { (self.set_threads)(threads as c_int) };
        let multiply = move |problem: &Problem, c: &mut [f32], a: &[f32], b: &[f32]| {
            let Problem {
                m, k, n, turned, ..
            } = *problem;
            let [rows, steps, columns] = [m, k, n].map(|size| size as c_int);
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            // SAFETY: the slices hold the matrices of these sizes.
            unsafe {
                match (m, n) {
                    (_, 1) if turned => sgemv(
                        ROW_MAJOR, TRANSPOSED, steps, rows, 1.0, a, rows, b, 1, 0.0, c, 1,
                    ),
                    (_, 1) => sgemv(
                        ROW_MAJOR, PLAIN, rows, steps, 1.0, a, steps, b, 1, 0.0, c, 1,
                    ),
                    (1, _) => sgemv(
                        ROW_MAJOR, TRANSPOSED, steps, columns, 1.0, b, columns, a, 1, 0.0, c, 1,
                    ),
                    _ => {
                        let (form, stride) = match turned {
                            true => (TRANSPOSED, rows),
                            false => (PLAIN, steps),
                        };
                        sgemm(
                            ROW_MAJOR, form, PLAIN, rows, columns, steps, 1.0, a, stride, b,
                            columns, 0.0, c, columns,
                        )
                    }
                }
            }
        };
        host(problem, operands, multiply)
    }
}
