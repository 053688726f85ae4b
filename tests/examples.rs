//! The examples as a user meets them: exit codes, one-line errors, JSON, NumPy files.
//!
//! The test builds them itself, so that none is stale: `cargo test --test examples` alone builds no
//! example.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use npyz::WriterBuilder;
use orlop::{DType, MatmulKernel, MatmulOperand, MatmulProblem};
use serde_json::Value;

// Parts of examples that their output shows too little of.
#[path = "../examples/matmul/check.rs"]
#[expect(dead_code, reason = "only the check is wanted")]
mod check;
#[path = "../examples/common/cli.rs"]
#[expect(dead_code, reason = "only what writes files is wanted")]
mod cli;
#[path = "../examples/tune/measure.rs"]
#[expect(dead_code, reason = "only what is merged is wanted")]
mod measure;
#[path = "../examples/tune/merge.rs"]
mod merge;
#[path = "../examples/matmul/values.rs"]
#[expect(dead_code, unused_imports, reason = "only what is checked is wanted")]
mod values;

/// Builds the examples in this test's profile and finds them.
fn built() -> HashMap<String, PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--examples", "--message-format=json", "--quiet"]);
    // <profile>/deps/<this test>.
    let this = std::env::current_exe().expect("the test's own path");
    let mut folders = this
        .ancestors()
        .skip_while(|folder| !folder.ends_with("deps"));
    cargo.arg("--profile");
    cargo.arg(match folders.nth(1).and_then(Path::file_name) {
        Some(name) if name != "debug" => name,
        None if !cfg!(debug_assertions) => OsStr::new("release"),
        _ => OsStr::new("dev"),
    });
    // As this test was, so that nothing is built twice.
    if cfg!(feature = "npy") {
        cargo.arg("--all-features");
    }
    let output = run(&mut cargo);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let artifact = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let path = message["executable"].as_str()?;
        let name = target["name"].as_str()?;
        (target["kind"][0] == "example").then(|| (name.to_owned(), path.into()))
    };
    text(&output.stdout).lines().filter_map(artifact).collect()
}

/// An example, with nothing of the caller's settings.
fn example(name: &str) -> Command {
    static BUILT: OnceLock<HashMap<String, PathBuf>> = OnceLock::new();
    let mut command = Command::new(&BUILT.get_or_init(built)[name]);
    command.env_remove("ORLOP_DEVICE");
    command.env_remove("ORLOP_VISIBLE_DEVICES");
    command
}

fn devices() -> Vec<orlop::DeviceInfo> {
    orlop::Device::list().expect("no name is wrong")
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("examples print UTF-8")
}

/// The one JSON value on stdout.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON value")
}

/// Exit code 2 and one line on stderr.
fn assert_refused(output: &Output, what: &str, word: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {said}");
    assert!(output.stdout.is_empty(), "{what}");
    // EGL adds a line of its own where XDG_RUNTIME_DIR is unset.
    let lines: Vec<_> = said
        .lines()
        .filter(|line| !line.contains("XDG_RUNTIME_DIR"))
        .collect();
    assert_eq!(lines.len(), 1, "{what}: {said}");
    assert!(lines[0].contains(word), "{what}: {said}");
    assert!(!said.contains("panicked"), "{what}: {said}");
}

/// A folder of this process for one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("orlop-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `npyz` writes and reads the files here, so that the example's own code has a witness.
fn write_npy(path: &Path, shape: &[u64], order: npyz::Order, elements: &[f32]) {
    let file = BufWriter::new(File::create(path).expect("a file"));
    let mut writer = npyz::WriteOptions::new()
        .default_dtype()
        .shape(shape)
        .order(order)
        .writer(file)
        .begin_nd()
        .expect("a header");
    writer.extend(elements).expect("elements");
    writer.finish().expect("an end");
}

fn read_npy(path: &Path) -> (Vec<u64>, Vec<f32>) {
    let file = BufReader::new(File::open(path).expect("a file"));
    let npy = npyz::NpyFile::new(file).expect("an npy file");
    assert_eq!(npy.order(), npyz::Order::C);
    (npy.shape().to_vec(), npy.into_vec().expect("f32 elements"))
}

#[test]
fn a_custom_kernel_runs_on_every_device() {
    for info in devices() {
        let output = run(example("custom_kernel").args([
            "--size=40",
            "--steps=30",
            "--device",
            &info.selector,
        ]));
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let verdict = match info.backend {
            "Gl" => "no bounds checks",
            "native" => "a CPU device has no kernels",
            _ => "gives what its twin does",
        };
        assert!(said.contains(verdict), "{said}");
        // A 13 x 13 square of 100 on 40 x 40; what has not reached the rim yet is still there.
        assert!(said.contains("mean 10.56"), "{said}");
    }
    let wrong = run(example("custom_kernel").args(["--size=2"]));
    assert_refused(&wrong, "a plate without an inside", "--size");
}

/// Learns the digits, and the same within bounds wherever it runs.
#[test]
fn a_perceptron_learns_on_every_device() {
    let mut first: Option<Vec<f64>> = None;
    for info in devices() {
        let output = run(example("mlp").args(["--json", "--device", &info.selector]));
        let report = json(&output);
        assert!(report["accuracy"].as_f64() >= Some(0.97), "{report}");
        let losses = report["losses"].as_array().expect("an array");
        let losses: Vec<f64> = losses.iter().filter_map(Value::as_f64).collect();
        assert_eq!(losses.len(), 12, "{report}");
        let first = first.get_or_insert_with(|| losses.clone());
        for (loss, other) in losses.iter().zip(first) {
            assert!((loss - *other).abs() <= 0.05 * *other + 0.005, "{report}");
        }
    }
    let wrong = run(example("mlp").args(["--epochs=0"]));
    assert_refused(&wrong, "nothing to learn in", "--epochs");
}

#[test]
fn json_has_every_key_on_every_device() {
    for info in devices() {
        let output = run(example("matmul").args([
            "--json",
            "--m=33",
            "--k=65",
            "--n=17",
            "--repeat=2",
            "--device",
            &info.selector,
        ]));
        let report = json(&output);
        for key in [
            "seconds",
            "gflops",
            "error",
            "error_bound",
            "upload_seconds",
            "download_seconds",
        ] {
            assert!(report[key].as_f64() >= Some(0.0), "{key}: {report}");
        }
        for key in ["allocated", "reserved", "peak_allocated", "peak_reserved"] {
            assert!(report["memory"][key].as_u64() > Some(0), "{key}: {report}");
        }
        assert_eq!(report["device"], info.selector);
        assert_eq!(report["adapter"], info.name);
        assert_eq!(report["backend"], info.backend);
        assert_eq!([&report["m"], &report["k"], &report["n"]], [33, 65, 17]);
        assert_eq!(report["dtype"], "f32");
        assert_eq!(report["entries_checked"], 33 * 17);
        assert!(report["error"].as_f64() <= report["error_bound"].as_f64());
    }
}

/// Where not all entries are looked at those that are lie in all parts of the product, each once; where a sample would be of
/// as many, all are.
#[test]
fn samples_are_spread() {
    use check::{Check, Roundings};
    use values::{Array, Values};
    let ones = |rows: usize, columns: usize| Array {
        values: Values::F32(vec![1.0; rows * columns]),
        shape: [rows, columns].into(),
        fortran: false,
    };
    // A run of wrong entries, from one on.
    let looked = |[m, k, n]: [usize; 3], wrong: std::ops::Range<usize>| -> Check {
        let mut c = vec![k as f32; m * n];
        c[wrong].fill(0.0);
        let c = Values::F32(c);
        check::check(&ones(m, k), &ones(k, n), &c, Roundings::Any).expect("they multiply")
    };
    let sampled = [200, 2000, 200];
    let right = looked(sampled, 0..0);
    assert!(right.holds());
    assert_eq!(right.checked, 4096);
    // Longer than two of 4096 parts.
    for start in [0, 1, 777, 12_345, 20_003, 31_999, 39_978] {
        assert!(!looked(sampled, start..start + 22).holds(), "{start}");
    }
    for at in [0, 1234, 3599] {
        let all = looked([60, 20_000, 60], at..at + 1);
        assert_eq!(all.checked, 3600);
        assert!(!all.holds(), "{at}");
    }
}

#[test]
fn every_dtype_is_within_its_bound() {
    for dtype in ["f32", "f16", "f64", "i32", "u32"] {
        let report = json(&run(example("matmul").args([
            "--json",
            "--size=40",
            "--device=cpu",
            "--dtype",
            dtype,
        ])));
        assert_eq!(report["dtype"], dtype);
        assert_eq!(
            report["error_bound"] == 0.0,
            dtype.ends_with("32") && dtype != "f32"
        );
    }
}

#[test]
fn numpy_files_in_both_orders_multiply() {
    let folder = Folder::new("npy");
    let (m, k, n) = (5u64, 7u64, 3u64);
    let a = |i: u64, l: u64| (i * 10 + l) as f32;
    let b = |l: u64, j: u64| l as f32 - 2.0 * j as f32;
    let expected: Vec<f32> = (0..m * n)
        .map(|at| (0..k).map(|l| a(at / n, l) * b(l, at % n)).sum())
        .collect();
    let (left, right, out) = (
        folder.path("a.npy"),
        folder.path("b.npy"),
        folder.path("c.npy"),
    );
    let rows: Vec<f32> = (0..m * k).map(|at| a(at / k, at % k)).collect();
    write_npy(&left, &[m, k], npyz::Order::C, &rows);
    let by_row: Vec<f32> = (0..k * n).map(|at| b(at / n, at % n)).collect();
    let by_column: Vec<f32> = (0..k * n).map(|at| b(at % k, at / k)).collect();
    for (order, elements) in [(npyz::Order::C, by_row), (npyz::Order::Fortran, by_column)] {
        write_npy(&right, &[k, n], order, &elements);
        for info in devices() {
            let mut command = example("matmul");
            command.args(["--json", "--device", &info.selector]);
            command.arg("--a").arg(&left).arg("--b").arg(&right);
            let report = json(&run(command.arg("--out").arg(&out)));
            assert_eq!([&report["m"], &report["k"], &report["n"]], [m, k, n]);
            // Small integers: exact in f32, whatever the order of summing.
            assert_eq!(read_npy(&out), (vec![m, n], expected.clone()), "{info}");
            std::fs::remove_file(&out).expect("a product");
        }
    }
}

/// Files hold what they like: ones times what vanishes beside the first of them, judged by the bound that
/// holds for all; random matrices by the closer one.
#[test]
fn files_are_judged_by_what_holds_for_all() {
    let folder = Folder::new("adversarial");
    let (left, right) = (folder.path("a.npy"), folder.path("b.npy"));
    let k = 1 << 14;
    let mut column = vec![2f32.powi(-25); k];
    column[0] = 1.0;
    write_npy(&left, &[1, k as u64], npyz::Order::C, &vec![1.0; k]);
    write_npy(&right, &[k as u64, 1], npyz::Order::C, &column);
    for info in devices() {
        let mut command = example("matmul");
        command.args(["--device", &info.selector]);
        let output = run(command.arg("--a").arg(&left).arg("--b").arg(&right));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("(k 2^-23 sum|a||b|)"));
    }
    let output = run(example("matmul").args(["--device=cpu", "--size=8"]));
    assert!(text(&output.stdout).contains("(4 sqrt(k) 2^-23 sum|a||b|)"));
}

/// A pipe takes the product though nothing else may be asked of it before, and a link to nowhere leads to nothing after a call
/// that is refused.
#[cfg(unix)]
#[test]
fn products_go_through_pipes_and_links() {
    let folder = Folder::new("pipe");
    let (pipe, link, end) = (
        folder.path("pipe"),
        folder.path("link"),
        folder.path("end.npy"),
    );
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo starts").success());
    let reader = {
        let pipe = pipe.clone();
        std::thread::spawn(move || std::fs::read(pipe))
    };
    let mut command = example("matmul");
    command.args(["--json", "--device=cpu", "--size=5", "--out"]);
    json(&run(command.arg(&pipe)));
    let file = reader.join().expect("no panic").expect("a file");
    let npy = npyz::NpyFile::new(&file[..]).expect("an npy file");
    assert_eq!(npy.shape(), [5, 5]);
    std::os::unix::fs::symlink("end.npy", &link).expect("a link");
    let mut command = example("matmul");
    command.args(["--device=abacus", "--size=5", "--out"]);
    assert_refused(&run(command.arg(&link)), "no such device", "cpu");
    assert!(link.is_symlink() && !end.exists());
    let mut command = example("matmul");
    command.args(["--json", "--device=cpu", "--size=5", "--out"]);
    json(&run(command.arg(&link)));
    assert_eq!(read_npy(&end).0, [5, 5]);
}

#[test]
fn batches_and_vectors_multiply() {
    let folder = Folder::new("batch");
    let (left, right, out) = (
        folder.path("a.npy"),
        folder.path("b.npy"),
        folder.path("c.npy"),
    );
    let six: Vec<f32> = (0..6).map(|i| i as f32).collect();
    write_npy(&left, &[2, 1, 3], npyz::Order::C, &six);
    write_npy(&right, &[3], npyz::Order::C, &[1.0, 10.0, 100.0]);
    let mut command = example("matmul");
    command.args(["--json", "--device=cpu"]);
    command.arg("--a").arg(&left).arg("--b").arg(&right);
    json(&run(command.arg("--out").arg(&out)));
    assert_eq!(read_npy(&out), (vec![2, 1], vec![210.0, 543.0]));
}

#[test]
fn malformed_files_are_refused_in_one_line() {
    let folder = Folder::new("malformed");
    let good = folder.path("good.npy");
    write_npy(&good, &[2, 2], npyz::Order::C, &[1.0; 4]);
    let bytes = std::fs::read(&good).expect("a file");
    let header = |dict: &str| {
        let length = (dict.len() as u16).to_le_bytes();
        [b"\x93NUMPY\x01\x00", &length[..], dict.as_bytes()].concat()
    };
    let dict = |descr: &str, shape: &str| {
        header(&format!(
            "{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
        ))
    };
    for (name, content, word) in [
        ("empty", Vec::new(), "not a .npy file"),
        ("text", b"1 2 3\n".to_vec(), "not a .npy file"),
        ("zip", b"PK\x03\x04".to_vec(), "zip"),
        ("cut", bytes[..9].to_vec(), "ends inside its header"),
        (
            "short",
            bytes[..bytes.len() - 1].to_vec(),
            "15 bytes of data",
        ),
        ("long", [&bytes[..], b"x"].concat(), "17 bytes of data"),
        (
            "version",
            [b"\x93NUMPY\x07\x00", &bytes[8..]].concat(),
            "version 7",
        ),
        (
            "length",
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff{".to_vec(),
            "longer than any of plain numbers",
        ),
        ("python", header("import os\n"), "malformed"),
        ("object", dict("'|O'", "(2, 2)"), "'O'"),
        ("int64", dict("'<i8'", "(2, 2)"), "'i8'"),
        ("record", dict("[('x', '<f4')]", "(2, 2)"), "records"),
        ("negative", dict("'<f4'", "(-2, 2)"), "malformed"),
        (
            "absurd",
            dict("'<f4'", "(4294967296, 4294967296, 4)"),
            "more than memory",
        ),
        (
            "larger",
            dict("'<f4'", "(36893488147419103232,)"),
            "malformed",
        ),
    ] {
        let path = folder.path(name);
        std::fs::write(&path, content).expect("a file");
        let mut command = example("matmul");
        command.arg("--device=cpu").arg("--a").arg(&path);
        let output = run(command.arg("--b").arg(&good));
        assert_refused(&output, name, word);
        assert!(
            text(&output.stderr).contains(&*path.to_string_lossy()),
            "{name}"
        );
    }
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    let folder = Folder::new("arguments");
    let (a, b) = (folder.path("a.npy"), folder.path("b.npy"));
    write_npy(&a, &[2, 3], npyz::Order::C, &[1.0; 6]);
    write_npy(&b, &[2, 3], npyz::Order::C, &[1.0; 6]);
    let (a, b) = (&*a.to_string_lossy(), &*b.to_string_lossy());
    for (arguments, word) in [
        (&["--frobnicate"][..], "--frobnicate"),
        (&["--size", "many"], "many"),
        (
            &["--size", "18446744073709551615", "--device", "cpu"],
            "GiB",
        ),
        (&["--repeat", "0"], "--repeat"),
        (
            &["--size", "2", "--out", "/no/such/c.npy"],
            "/no/such/c.npy",
        ),
        (&["--dtype", "bf16"], "bf16"),
        (&["--device", "abacus"], "cpu"),
        (&["--a", a], "--b"),
        (&["--a", a, "--b", "/no/such/file.npy"], "/no/such/file.npy"),
        (&["--a", a, "--b", b, "--size", "7"], "--size"),
        #[cfg(unix)]
        (&["--a", "/dev/zero", "--b", b], "/dev/zero"),
        (&["--a", a, "--b", b, "--device", "cpu"], "[2, 3]"),
        (&["--a", a, "--b", b, "--m", "2"], "--m"),
    ] {
        assert_refused(
            &run(example("matmul").args(arguments)),
            &arguments.join(" "),
            word,
        );
    }
    assert_refused(
        &run(example("matmul").env("ORLOP_DEVICE", "abacus")),
        "ORLOP_DEVICE",
        "abacus",
    );
    for name in ["devices", "placement", "memory", "replay"] {
        assert_refused(
            &run(example(name).arg("--frobnicate")),
            name,
            "--frobnicate",
        );
        let help = run(example(name).arg("--help"));
        assert!(help.status.success() && !help.stdout.is_empty(), "{name}");
    }
}

#[test]
fn without_a_gpu_the_cpu_takes_over_and_says_so() {
    // A backend of another system: no adapter at all.
    let elsewhere = if cfg!(windows) { "metal" } else { "dx12" };
    let output = run(example("matmul")
        .arg("--size=32")
        .env("WGPU_BACKEND", elsewhere));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.starts_with("no GPU found: running on the native CPU device\n"),
        "{said}"
    );
    let report = json(&run(example("matmul")
        .args(["--size=32", "--json"])
        .env("WGPU_BACKEND", elsewhere)));
    assert_eq!(report["device"], "cpu");
}

#[test]
fn devices_lists_every_device() {
    let listed = json(&run(example("devices").arg("--json")));
    let selectors: Vec<_> = devices()
        .into_iter()
        .map(|info| Value::from(info.selector))
        .collect();
    let objects = listed.as_array().expect("an array");
    let found: Vec<_> = objects.iter().map(|o| o["selector"].clone()).collect();
    assert_eq!(found, selectors);
    for key in ["name", "kind", "backend", "f16", "f64", "max_buffer_bytes"] {
        assert!(objects.iter().all(|o| !o[key].is_null()), "{key}");
    }
    let table = run(&mut example("devices"));
    for info in devices() {
        assert!(text(&table.stdout).contains(&info.name), "{info}");
    }
}

#[test]
fn placement_and_memory_tell_their_stories_on_every_device() {
    for info in devices() {
        let output = run(example("placement").args(["--device", &info.selector]));
        assert!(output.status.success(), "{info}: {}", text(&output.stderr));
        let capable = info.capabilities.f64;
        let word = if capable { "nothing needs" } else { "error: " };
        let said = text(&output.stdout);
        for word in [word, "Scopes", "result on", "budget 4.0 MiB", "promised,"] {
            assert!(said.contains(word), "{info}: no `{word}` in {said}");
        }

        let arguments = ["--device", &info.selector, "--limit", "4194304"];
        let output = run(example("memory").args(arguments));
        assert!(output.status.success(), "{info}: {}", text(&output.stderr));
        let said = text(&output.stdout);
        assert!(
            said.contains("out of memory: asked for 256.0 KiB"),
            "{info}: {said}"
        );
        assert!(said.contains("the sevens are all there"), "{info}");
        for (step, regions) in [
            ("4 x 1 and 3 units: same region", "1"),
            ("2 units fit the merged hole", "1"),
            ("4 units do not: a new region", "2"),
        ] {
            let line = said.lines().find_map(|line| line.strip_prefix(step));
            let told = line.and_then(|line| line.split_whitespace().nth(3));
            assert_eq!(told, Some(regions), "{info}: {said}");
        }
    }
}

/// The picture of `render_interop` as rows of RGBA.
fn landscape(device: &str, seed: &str) -> Vec<Vec<[u8; 4]>> {
    let folder = Folder::new(&format!("landscape-{seed}"));
    let output = folder.path("picture.png");
    let drawn = run(example("render_interop")
        .args(["--width=320", "--height=180", "--seed", seed])
        .args(["--device", device, "--output"])
        .arg(&output));
    assert!(drawn.status.success(), "{device}: {}", text(&drawn.stderr));
    let file = BufReader::new(File::open(&output).expect("a picture"));
    let mut reader = png::Decoder::new(file).read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("it is small")];
    let frame = reader.next_frame(&mut bytes).expect("a whole picture");
    assert_eq!((frame.width, frame.height), (320, 180));
    assert_eq!(frame.color_type, png::ColorType::Rgba);
    let pixels = bytes.chunks_exact(4).map(|rgba| rgba.try_into().unwrap());
    let pixels: Vec<[u8; 4]> = pixels.collect();
    pixels.chunks_exact(320).map(<[_]>::to_vec).collect()
}

fn apart(a: [u8; 4], b: [u8; 4]) -> u8 {
    let apart = a.iter().zip(b).map(|(&a, b)| a.abs_diff(b));
    apart.max().expect("four channels")
}

#[test]
fn a_renderer_draws_a_tensor_on_its_own_device() {
    // What was drawn when somebody looked at it: places of one colour.
    let places = [
        ("snow in shadow", 72, 64, [93, 94, 97]),
        ("hazy snow", 301, 65, [204, 222, 237]),
        ("rock", 26, 95, [41, 37, 34]),
        ("far rock", 255, 72, [110, 100, 92]),
        ("grass", 251, 128, [70, 118, 53]),
        ("near grass", 305, 158, [89, 136, 60]),
        ("sea", 169, 158, [65, 147, 160]),
        ("shallow sea", 228, 175, [74, 163, 170]),
    ];
    let there = |picture: &[Vec<[u8; 4]>]| {
        let right = places.iter().filter(|(_, x, y, [r, g, b])| {
            apart(picture[*y as usize][*x as usize], [*r, *g, *b, 255]) <= 12
        });
        right.map(|place| place.0).collect::<Vec<_>>()
    };
    let mut first: Option<Vec<Vec<[u8; 4]>>> = None;
    for info in orlop::Device::list().expect("a list") {
        if info.backend == "native" {
            continue;
        }
        let device = format!("{} {}", info.name, info.backend);
        let picture = landscape(&device, "7");
        // The sky, by the shader's formula.
        for y in [0, 10, 20] {
            let up = 1.0 - 2.0 * (y as f64 + 0.5) / 180.0;
            let t = ((up - 0.25) / (1.2 - 0.25)).clamp(0.0, 1.0);
            let t = t * t * (3.0 - 2.0 * t);
            let mix = |a: f64, b: f64| ((a + (b - a) * t) * 255.0).round() as u8;
            let sky = [mix(0.80, 0.24), mix(0.87, 0.47), mix(0.93, 0.78), 255];
            let drawn = picture[y][5];
            assert!(apart(drawn, sky) <= 2, "{device}: row {y} is {drawn:?}");
        }
        let named = places.map(|place| place.0);
        assert_eq!(there(&picture), named, "{device}");
        // The same numbers on every device, so the same picture but for edges.
        let first = first.get_or_insert_with(|| picture.clone());
        let pairs = first.iter().flatten().zip(picture.iter().flatten());
        let different = pairs.filter(|(a, b)| apart(**a, **b) > 8).count();
        assert!(different < 320 * 180 / 200, "{device}: {different} pixels");
        if info.selector == "soft:0" {
            // Another tensor is another picture.
            assert!(there(&landscape(&device, "8")).len() < places.len() / 2);
        }
    }
    for (arguments, word) in [
        (&["--device", "no such adapter"][..], "no adapter matches"),
        (&["--output", "/no/such/folder/x.png"], "/no/such/folder"),
        (&["--width", "7"], "--width"),
    ] {
        if word != "/no/such/folder" || first.is_some() {
            let output = run(example("render_interop").args(arguments));
            assert_refused(&output, word, word);
        }
    }
}

const TRACES: [&str; 4] = ["gpt2_train", "llm_decode", "lstm_train", "resnet_train"];

fn trace(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    folder.join(format!("{name}.trace"))
}

/// The lines that `replay --json` prints, one for each trace.
fn replay(traces: &[&str], arguments: &[&str]) -> Vec<Value> {
    let mut command = example("replay");
    command.args(traces.iter().map(|name| trace(name)));
    let output = run(command.arg("--json").args(arguments));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout).lines();
    let reports: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("one JSON object a line"))
        .collect();
    assert_eq!(reports.len(), traces.len());
    for (report, name) in reports.iter().zip(traces) {
        assert_eq!(report["trace"], *name);
        assert_eq!(report["verified"], true, "{report}");
        for key in [
            "events",
            "allocations",
            "peak_live",
            "peak_reserved",
            "ratio",
        ] {
            assert!(report[key].as_f64() > Some(0.0), "{key}: {report}");
        }
        for key in [
            "ns_per_allocation",
            "moved_bytes",
            "relocations",
            "spilled_bytes",
        ] {
            assert!(report[key].as_f64() >= Some(0.0), "{key}: {report}");
        }
        let [peak, reserved] = ["peak_live", "peak_reserved"].map(|key| report[key].as_f64());
        let ratio = reserved.zip(peak).map(|(reserved, peak)| reserved / peak);
        let told = report["ratio"].as_f64();
        assert!(ratio.zip(told).is_some_and(|(a, b)| (a - b).abs() < 1e-4));
    }
    reports
}

/// Bytes that a trace allocates in all.
fn allocated(name: &str) -> f64 {
    let text = std::fs::read_to_string(trace(name)).expect("a trace");
    let bytes = |line: &str| {
        line.strip_prefix("a ")?
            .split(' ')
            .nth(1)?
            .parse::<f64>()
            .ok()
    };
    text.lines().filter_map(bytes).sum()
}

#[test]
fn traces_need_little_more_than_they_use() {
    for report in replay(&TRACES, &[]) {
        assert!(report["ratio"].as_f64() <= Some(1.10), "{report}");
        assert_eq!([&report["failures"], &report["relocations"]], [0, 0]);
    }
    for (report, name) in replay(&TRACES, &["--limit", "1.02x"]).iter().zip(TRACES) {
        assert!(report["ratio"].as_f64() <= Some(1.02), "{report}");
        assert_eq!(report["failures"], 0, "{report}");
        let moved = report["moved_bytes"].as_f64().expect("a number");
        assert!(moved < 0.05 * allocated(name), "{report}");
    }
    let scattered = replay(&TRACES, &["--limit", "1.02x", "--when-full", "fail"]);
    let failures = |report: &Value| report["failures"].as_u64();
    assert!(scattered.iter().any(|report| failures(report) > Some(0)));
    for report in replay(&TRACES, &["--limit", "0.5x", "--when-full=spill"]) {
        assert_eq!(report["failures"], 0, "{report}");
        assert!(report["spilled_bytes"].as_u64() > Some(0), "{report}");
    }
    for growth in [
        "preallocate:1G",
        "step:1M",
        "doubling:2M",
        "preallocate:0.5",
    ] {
        replay(&["lstm_train"], &["--growth", growth, "--limit", "2G"]);
    }
}

#[test]
fn traces_hold_every_byte_on_every_device() {
    for info in devices() {
        let device = ["--device", &info.selector];
        let [report] = &replay(&["lstm_train"], &device)[..] else {
            panic!("one trace, one report");
        };
        assert!(report["ratio"].as_f64() <= Some(1.10), "{info}: {report}");
        assert_eq!(report["failures"], 0, "{info}: {report}");
        if info.backend == "native" {
            continue;
        }
        let relocated = [&device[..], &["--limit", "1.02x"]].concat();
        for report in replay(&["lstm_train"], &relocated) {
            assert!(report["ratio"].as_f64() <= Some(1.02), "{info}: {report}");
            assert!(report["relocations"].as_u64() > Some(0), "{info}: {report}");
            assert_eq!(report["failures"], 0, "{info}: {report}");
        }
        let spilled = [&device[..], &["--limit", "0.5x", "--when-full", "spill"]].concat();
        for report in replay(&["lstm_train"], &spilled) {
            assert!(report["ratio"].as_f64() <= Some(0.5), "{info}: {report}");
            assert!(
                report["spilled_bytes"].as_u64() > Some(0),
                "{info}: {report}"
            );
            assert_eq!(report["failures"], 0, "{info}: {report}");
        }
    }
}

#[test]
fn malformed_traces_are_refused_with_their_line() {
    let folder = Folder::new("traces");
    for (name, content, words) in [
        ("verb", "a 0 256\nb 1 2\n", ["line 2", "b 1 2"]),
        ("short", "a 0 256\n\n# nothing\na 1\n", ["line 4", "a 1"]),
        ("long", "a 0 256 7\n", ["line 1", "a 0 256 7"]),
        ("bytes", "a 0 -256\n", ["line 1", "-256"]),
        ("twice", "a 0 1\na 0 2\n", ["line 2", "in use"]),
        ("freed", "a 0 1\nf 0\nf 0\n", ["line 3", "not in use"]),
        (
            "sum",
            "a 0 18446744073709551615\na 1 1\n",
            ["line 2", "u64"],
        ),
    ] {
        let path = folder.path(name);
        std::fs::write(&path, content).expect("a file");
        // The good one is not replayed either.
        let output = run(example("replay").arg(trace("lstm_train")).arg(&path));
        for word in words {
            assert_refused(&output, name, word);
        }
        assert!(text(&output.stderr).contains(&*path.to_string_lossy()));
    }
    let binary = folder.path("binary");
    std::fs::write(&binary, b"a 0 1\nf 0\n\xff\n").expect("a file");
    assert_refused(&run(example("replay").arg(&binary)), "binary", "line 3");
    for (arguments, word) in [
        (&["/no/such/trace"][..], "/no/such/trace"),
        (&["x", "--growth", "preallocate:0.5"], "--limit"),
        (&[], "FILE"),
        (&["x", "--growth", "sideways"], "proportional"),
        (&["x", "--limit", "much"], "much"),
        (&["x", "--when-full", "explode"], "relocate"),
    ] {
        assert_refused(&run(example("replay").args(arguments)), word, word);
    }
    for (arguments, word) in [
        (["--device", "abacus"], "abacus"),
        (["--growth", "preallocate:17179869183G"], "preallocated"),
    ] {
        let output = run(example("replay").arg(trace("lstm_train")).args(arguments));
        assert_refused(&output, word, word);
    }
    let empty = folder.path("empty");
    std::fs::write(&empty, "").expect("a file");
    let report = json(&run(example("replay").arg(&empty).arg("--json")));
    assert_eq!([&report["events"], &report["peak_reserved"]], [0, 0]);
}

/// What is wrong with the arguments is said before anything is measured; integers are measured as well.
#[cfg(feature = "matmul-table")]
#[test]
fn tune_refuses_before_it_measures() {
    let folder = Folder::new("tune");
    let bad = folder.path("bad.toml");
    std::fs::write(&bad, "[[adaptor]]\n").expect("a file");
    let bad = &*bad.to_string_lossy();
    let Some(info) = devices().into_iter().find(|info| info.selector != "cpu") else {
        return;
    };
    let small = ["--sizes=16", "--batches=1", "--rounds=1", "--device"];
    let tune = |arguments: &[&str]| {
        run(example("tune")
            .args(small)
            .arg(&info.selector)
            .args(arguments))
    };
    for (arguments, word) in [
        (["--dtypes", "f32,bool"], "bool"),
        (["--out", "/no/such/t.toml"], "/no/such/t.toml"),
        (["--base", bad], "bad.toml"),
        (["--sizes", "0"], "--sizes 0"),
        (["--longest", "nan"], "--longest"),
        (["--longest", "-1"], "--longest"),
    ] {
        assert_refused(&tune(&arguments), word, word);
    }
    let output = tune(&["--dtypes", "i32,u32"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// The entries that are compared are the product's first and last ones, however they lie in matrices.
#[cfg(feature = "matmul-table")]
#[test]
fn tune_knows_wrong_entries() {
    use measure::{alike, ends, reference};
    use orlop::{DType, Device, Tensor};
    let cpu = Device::cpu();
    let shapes = [
        [1, 5, 7, 3],
        [3, 33, 17, 65],
        [2, 1, 4, 5000],
        [2, 3, 4, 4097],
        [1, 200, 3, 100],
        [70, 8, 8, 8],
        [1000, 3, 1, 3],
    ];
    for [batches, m, k, n] in shapes {
        let random = |shape: [usize; 3], seed| Tensor::randn(&cpu, shape, DType::F32, seed);
        let a = random([batches, m, k], 1).expect("a");
        let b = random([batches, k, n], 2).expect("b");
        let product = a.matmul(&b).expect("a product");
        let expected = reference(&a, &b).expect("a reference");
        let size = product.elements();
        assert!(alike(&ends(&product).expect("entries"), &expected));
        for at in [0, size.min(4096) - 1, size - size.min(4096), size - 1] {
            let wrong = product.copy().expect("a copy");
            let flat = wrong.reshape([size]).expect("a view");
            flat.slice(at..at + 1).expect("one").fill(1e3).expect("it");
            let entries = ends(&wrong).expect("entries");
            assert!(!alike(&entries, &expected), "{batches} {m} {k} {n}: {at}");
        }
    }
    assert!(!alike(&[f32::NAN], &[1.0]) && !alike(&[], &[1.0]));
}

/// Who reads a file while it is written has the one from before: it was not written over.
#[test]
fn files_are_replaced_whole() {
    let folder = Folder::new("replaced");
    let path = folder.path("table.toml");
    cli::write(&path, b"old").expect("a file");
    let mut before = File::open(&path).expect("a file");
    cli::write(&path, b"new one").expect("a file");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut before, &mut text).expect("text");
    assert_eq!(text, "old");
    assert_eq!(std::fs::read(&path).expect("a file"), b"new one");
    assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1);
}

/// Merged or not, a choice stands for what was measured, and for nothing that was measured as something else.
#[test]
fn tune_merges_what_agrees() {
    let sizes = [1, 16, 64, 256];
    let batches = [1, 8];
    let lies = |operand: &mut MatmulOperand, along_k, width| {
        (operand.along_k, operand.width, operand.texels) = (along_k, width, false);
    };
    let kernels = MatmulKernel::all();
    for seed in 0..200u32 {
        // Few kernels, so that many agree; some problems keep what is planned.
        let way = |at: u32| {
            let mixed = (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
            let split = 1 + (mixed >> 20) % 2;
            let kernel = kernels[(mixed >> 24) as usize % 2];
            (!(mixed >> 16).is_multiple_of(4)).then_some(measure::Way { kernel, split })
        };
        let mut asked = Vec::new();
        for (m, k, n) in (0..64).map(|at| (sizes[at / 16], sizes[at / 4 % 4], sizes[at % 4])) {
            for (batches, a_along_k, width) in [(1, true, 4), (8, true, 4), (8, false, 1)] {
                let way = way(asked.len() as u32 / (1 + seed % 7));
                let mut problem = MatmulProblem::new(m, k, n, DType::F32);
                // As they are, a row not turned round.
                (problem.m, problem.n, problem.batches) = (m, n, batches);
                lies(&mut problem.a, a_along_k, width);
                lies(&mut problem.b, false, width);
                asked.push((problem, way));
            }
        }
        let found: Vec<_> = asked
            .iter()
            .filter_map(|&(problem, way)| way.map(|way| (problem, way)))
            .collect();
        let choices = merge::choices(found.clone(), &sizes, &batches);
        assert!(choices.len() < found.len(), "seed {seed}: nothing merged");
        for (problem, way) in asked {
            let standing: Vec<_> = choices
                .iter()
                .filter(|choice| {
                    choice.m.contains(&problem.m)
                        && choice.k.contains(&problem.k)
                        && choice.n.contains(&problem.n)
                        && choice.batches.contains(&problem.batches)
                        && choice.a_along_k == Some(problem.a.along_k)
                        && choice.b_along_k == Some(problem.b.along_k)
                        && choice.vectors == Some(problem.vectors())
                })
                .map(|choice| (choice.kernel, choice.split))
                .collect();
            let wanted: Vec<_> = way.iter().map(|way| (way.kernel, way.split)).collect();
            assert_eq!(standing, wanted, "seed {seed}: {problem:?}");
        }
    }
}
