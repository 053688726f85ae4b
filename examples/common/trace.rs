//! Traces of allocations: a line `a ID BYTES` allocates, `f ID` frees. Blank lines and lines that
//! begin with `#` are nothing.

use std::collections::HashMap;
use std::fmt;

/// One line of a trace; ids are replaced by the number of the allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Allocate { index: usize, bytes: u64 },
    Free { index: usize },
}

/// A trace that makes sense: what is freed was allocated before, and no id names two blocks.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub events: Vec<Event>,
    /// Bytes of each allocation, as asked for.
    pub sizes: Vec<u64>,
    /// Most bytes in use at any time.
    pub peak_live: u64,
}

/// What is wrong with a trace, and in which line (from 1).
#[derive(Debug)]
pub struct Malformed {
    pub line: usize,
    pub problem: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.problem)
    }
}

impl std::error::Error for Malformed {}

impl Trace {
    /// Reads the text of a trace.
    ///
    /// # Errors
    /// [`Malformed`] names the first line that is not as described above.
    pub fn parse(text: &str) -> Result<Trace, Malformed> {
        let mut trace = Trace::default();
        let mut live = Live::default();
        for (at, line) in text.lines().enumerate() {
            trace.line(line, &mut live).map_err(|problem| Malformed {
                line: at + 1,
                problem,
            })?;
        }
        Ok(trace)
    }

    fn line<'a>(&mut self, line: &'a str, live: &mut Live<'a>) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["a", id, bytes] => {
                let bytes: u64 = bytes
                    .parse()
                    .map_err(|_| format!("`{bytes}` is no number of bytes"))?;
                let index = self.sizes.len();
                if live.indices.insert(id, index).is_some() {
                    return Err(format!("{id} is in use already"));
                }
                live.bytes = live
                    .bytes
                    .checked_add(bytes)
                    .ok_or("more bytes are in use than a u64 counts")?;
                self.peak_live = self.peak_live.max(live.bytes);
                self.sizes.push(bytes);
                self.events.push(Event::Allocate { index, bytes });
            }
            ["f", id] => {
                let index = live
                    .indices
                    .remove(id)
                    .ok_or_else(|| format!("{id} is freed, but not in use"))?;
                live.bytes -= self.sizes[index];
                self.events.push(Event::Free { index });
            }
            _ => return Err(format!("neither `a ID BYTES` nor `f ID`: `{line}`")),
        }
        Ok(())
    }
}

/// What is in use while a trace is read.
#[derive(Default)]
struct Live<'a> {
    indices: HashMap<&'a str, usize>,
    bytes: u64,
}
