//! What the examples share: arguments, output and exit codes without a panic.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Exit code of everything that the caller can put right: arguments, files, shapes, devices.
pub const REFUSED: u8 = 2;

/// Reads the arguments and runs the example; an error is said on stderr, in one line where it is the arguments', and gives
/// exit code 2.
pub fn run<Args: clap::Parser>(
    example: impl FnOnce(Args) -> Result<ExitCode, Box<dyn std::error::Error>>,
) -> ExitCode {
    match Args::try_parse() {
        Ok(args) => example(args).unwrap_or_else(|error| refuse(&error)),
        // Help and version are errors to clap, and go to stdout.
        Err(help) if !help.use_stderr() => {
            say(help);
            ExitCode::SUCCESS
        }
        Err(error) => {
            // clap's message and its tip come before what every error ends with.
            let text = error.to_string();
            let end =
                ["\n\nUsage:", "\n\nFor more"].map(|end| text.find(end).unwrap_or(text.len()));
            let message = &text[..end[0].min(end[1])];
            let hint = if error.kind() == clap::error::ErrorKind::MissingRequiredArgument {
                ""
            } else {
                " (see --help)"
            };
            let words: Vec<&str> = message
                .trim_start_matches("error: ")
                .split_whitespace()
                .collect();
            let line = words.join(" ");
            refuse(&format!("{line}{hint}"))
        }
    }
}

/// Prints text. A reader that has gone away is no reason to complain; a disk that is full is.
pub fn say(text: impl Display) {
    let mut stdout = std::io::stdout().lock();
    let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        complain(format_args!("error: stdout: {error}\n"));
        std::process::exit(REFUSED.into())
    }
}

/// Prints a line on stderr, for eyes that read what [`say`] prints by machine.
#[allow(dead_code)] // not every example has something to say there
pub fn complain(text: impl Display) {
    let _ = write!(std::io::stderr().lock(), "{text}");
}

/// Says no to a file that cannot be written before there is anything to write; one that is there stays. Pipes and devices are
/// not looked at: who reads a pipe would take its closing for the end.
///
/// # Errors
/// The file, and what the system says.
#[allow(dead_code)] // not every example writes a file
pub fn check_writable(path: &std::path::Path) -> Result<(), String> {
    let there = std::fs::metadata(path);
    if there.is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return Ok(());
    }
    let is_new = !path.exists();
    let mut options = std::fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).open(path);
    opened.map_err(|error| format!("{}: {error}", path.display()))?;
    if is_new {
        // What a link led to, not the link.
        let _ = path.canonicalize().and_then(std::fs::remove_file);
    }
    Ok(())
}

/// Writes a file; one that is there is replaced when all is written, by another beside it, where its folder takes one.
///
/// # Errors
/// The file, and what the system says.
#[allow(dead_code)] // not every example writes a file
pub fn write(path: &std::path::Path, bytes: &[u8]) -> Result<(), String> {
    let place = path.canonicalize().ok().filter(|place| place.is_file());
    let beside = place.and_then(|place| {
        let name = format!(".orlop-example-{}", std::process::id());
        let beside = place.with_file_name(name);
        let file = std::fs::File::create_new(&beside).ok()?;
        Some((place, beside, file))
    });
    let written = match beside {
        Some((place, beside, mut file)) => {
            let written = std::fs::metadata(&place)
                .and_then(|there| file.set_permissions(there.permissions()))
                .and_then(|()| file.write_all(bytes))
                .and_then(|()| file.sync_all())
                .and_then(|()| std::fs::rename(&beside, &place));
            written.inspect_err(|_| drop(std::fs::remove_file(&beside)))
        }
        // Nothing is there, or nothing but this file can be written.
        None => std::fs::write(path, bytes),
    };
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Errors of kernels have lines that show where.
fn refuse(error: &dyn Display) -> ExitCode {
    complain(format_args!("error: {error}\n"));
    ExitCode::from(REFUSED)
}

/// A number of bytes, perhaps in K, M or G (of 1024).
///
/// # Errors
/// What is none.
#[allow(dead_code)] // not every example takes one
pub fn bytes(text: &str) -> Result<u64, String> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        _ => 0,
    };
    let number = text.strip_suffix(['K', 'M', 'G']).unwrap_or(text);
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is no number of bytes"))
}
