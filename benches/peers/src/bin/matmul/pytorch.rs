//! PyTorch, in a Python of its own: commands, operands and results go through pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::peer::{Peer, Run};
use crate::shapes::{Operands, Problem};

/// What products are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    F32,
    /// f32 whose factors are rounded to 11 bits, by tensor cores.
    Tf32,
    F16,
}

impl Precision {
    /// The name of the peer, and of the precision in the program.
    fn names(self) -> [&'static str; 2] {
        match self {
            Precision::F32 => ["PyTorch", "f32"],
            Precision::Tf32 => ["with TF32", "tf32"],
            Precision::F16 => ["PyTorch", "f16"],
        }
    }
}

pub struct PyTorch {
    precision: Precision,
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PyTorch {
    /// On `cpu`, or with `cuda` on the first GPU; says on stderr what it found.
    pub fn open(place: &str, precision: Precision) -> Result<Self, String> {
        let python = std::env::var("ORLOP_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let [_, name] = precision.names();
        let child = Command::new(&python)
            .args(["-c", include_str!("pytorch.py"), place, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("{python}: {error}"))?;
        let (Some(commands), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{python} has no pipes"));
        };
        let mut torch = Self {
            precision,
            child,
            commands,
            answers: BufReader::new(answers),
        };
        match torch.line().as_str() {
            "" => Err(format!("{python} has no PyTorch for {place}")),
            found => {
                eprintln!("matmul: {found}, {name}");
                Ok(torch)
            }
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(_) => line.trim().to_owned(),
            Err(error) => panic!("PyTorch: {error}"),
        }
    }

    fn ask(&mut self, command: &str, operands: &[&[f32]]) {
        let mut send = || {
            writeln!(self.commands, "{command}")?;
            for values in operands {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_ne_bytes()).collect();
                self.commands.write_all(&bytes)?;
            }
            self.commands.flush()
        };
        send().unwrap_or_else(|error| panic!("PyTorch, {command}: {error}"));
    }
}

impl Drop for PyTorch {
    fn drop(&mut self) {
        // It may be at work.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Peer for PyTorch {
    fn name(&self) -> &'static str {
        self.precision.names()[0]
    }

    fn rounding(&self) -> f64 {
        match self.precision {
            Precision::Tf32 => 2f64.powi(-10),
            Precision::F32 | Precision::F16 => 0.0,
        }
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
        let command = format!("prepare {batch} {m} {k} {n} {}", u8::from(turned));
        self.ask(&command, &[&operands.a, &operands.b]);
        assert_eq!(self.line(), "ready", "PyTorch: {}", problem.name());
        Some(Box::new(Ready {
            torch: self,
            entries: batch * m * n,
        }))
    }
}

struct Ready<'a> {
    torch: &'a mut PyTorch,
    entries: usize,
}

impl Run for Ready<'_> {
    fn run(&mut self, times: usize) {
        self.torch.ask(&format!("run {times}"), &[]);
        assert_eq!(self.torch.line(), "done", "PyTorch");
    }

    fn result(&mut self) -> Vec<f32> {
        self.torch.ask("result", &[]);
        let mut bytes = vec![0; 4 * self.entries];
        if let Err(error) = self.torch.answers.read_exact(&mut bytes) {
            panic!("PyTorch: {error}");
        }
        let words = bytes.as_chunks::<4>().0;
        words.iter().map(|&word| f32::from_ne_bytes(word)).collect()
    }
}
