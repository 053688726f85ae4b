//! Functions of f32 as compilers of Metal and Direct3D may compile them: sums and products in any order, factors taken out of
//! sums, as if there were no NaN. The text that Metal gets, through the C++ compiler with `-ffast-math`, against f64.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use orlop::kernels::KernelSource;

use super::random::Random;
use super::{kernels, parse, profiles, validate, write_msl};

/// A function of docs/numerics.md: units in the last place, and of the operand's size.
struct Case {
    name: &'static str,
    exact: fn(f64, f64) -> f64,
    ulps: f64,
    of_operand: f64,
}

/// NaN where one is.
fn minimum(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else {
        x.min(y)
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Below -1 libm has some number.
fn acosh(x: f64) -> f64 {
    if x < 1.0 { f64::NAN } else { libm::acosh(x) }
}

fn cases() -> Vec<Case> {
    let case = |name, exact, ulps, of_operand| Case {
        name,
        exact,
        ulps,
        of_operand,
    };
    vec![
        case("exp", |x, _| x.exp(), 2.0, 0.0),
        case("exp2", |x, _| x.exp2(), 2.0, 0.0),
        case("expm1", |x, _| x.exp_m1(), 3.0, 0.0),
        case("log", |x, _| x.ln(), 2.0, 0.0),
        case("log2", |x, _| x.log2(), 2.0, 0.0),
        case("log1p", |x, _| x.ln_1p(), 3.0, 0.0),
        case("sin", |x, _| x.sin(), 3.0, 0.0),
        case("cos", |x, _| x.cos(), 3.0, 0.0),
        case("tan", |x, _| x.tan(), 5.0, 0.0),
        case("asin", |x, _| x.asin(), 5.0, 0.0),
        case("acos", |x, _| x.acos(), 5.0, 0.0),
        case("atan", |x, _| x.atan(), 4.0, 0.0),
        case("atan2", f64::atan2, 6.0, 0.0),
        case("sinh", |x, _| x.sinh(), 3.0, 0.0),
        case("cosh", |x, _| x.cosh(), 3.0, 0.0),
        case("asinh", |x, _| libm::asinh(x), 5.0, 0.0),
        case("acosh", |x, _| acosh(x), 6.0, 0.0),
        case("atanh", |x, _| libm::atanh(x), 6.0, 0.0),
        case("tanh", |x, _| x.tanh(), 6.0, 0.0),
        case("sigmoid", |x, _| sigmoid(x), 6.0, 0.0),
        case("erf", |x, _| libm::erf(x), 3.0, 0.0),
        case(
            "gelu",
            |x, _| 0.5 * x * libm::erfc(-x / 2f64.sqrt()),
            4.0,
            3e-7,
        ),
        case(
            "gelu_tanh",
            |x, _| x * sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)),
            8.0,
            3e-7,
        ),
        case("silu", |x, _| x * sigmoid(x), 7.0, 0.0),
        case(
            "softplus",
            |x, _| x.max(0.0) + (-x.abs()).exp().ln_1p(),
            6.0,
            0.0,
        ),
        case("pow", f64::powf, 3.0, 0.0),
        case("rem", |x, y| x % y, 0.0, 0.0),
        case("minimum", minimum, 0.0, 0.0),
        case("maximum", |x, y| -minimum(-x, -y), 0.0, 0.0),
        case("eq", |x, y| f64::from(x == y), 0.0, 0.0),
        case("ne", |x, y| f64::from(x != y), 0.0, 0.0),
        case("lt", |x, y| f64::from(x < y), 0.0, 0.0),
        case("le", |x, y| f64::from(x <= y), 0.0, 0.0),
        case("gt", |x, y| f64::from(x > y), 0.0, 0.0),
        case("ge", |x, y| f64::from(x >= y), 0.0, 0.0),
    ]
}

/// The kernel of one function of whole f32 tensors, an element at a time.
fn kernel(name: &str) -> &'static KernelSource {
    let (one, two) = (format!("= {name}_F(a0);"), format!("= {name}_F(a0, a1);"));
    kernels()
        .iter()
        .find(|source| {
            source.name.starts_with("elementwise ")
                && (source.name.contains(&one) || source.name.contains(&two))
                && source.name.contains(" operands=f32")
                && !source.name.contains("16/")
                && source.name.contains(" vector=1 ")
                && !source.immediates
        })
        .unwrap_or_else(|| panic!("no kernel of {name}"))
}

/// Its functions as Metal gets them, down to `apply`.
fn functions(source: &KernelSource) -> String {
    let module = parse(source);
    let [.., largest, _] = profiles();
    let text = write_msl(source, &module, &validate(source, &module, &largest));
    let from = text.find("typedef float F;").expect("its types");
    let apply = text.find(" apply(").expect("the function of an element");
    let end = apply + text[apply..].find("\n}\n").expect("its end") + 3;
    // What packs bools has vectors; `apply` does not call it.
    let parts = text[from..end].split_inclusive("\n}\n");
    let parts =
        parts.filter(|part| !part.contains("metal::uint4") && !part.contains("metal::bool4"));
    single(&parts.collect::<String>())
}

/// With numbers of C++ as numbers of Metal, which are f32.
fn single(text: &str) -> String {
    let mut out = String::new();
    let mut number = String::new();
    let mut previous = ' ';
    for at in text.chars().chain([' ']) {
        let begins = at.is_ascii_digit() && !(previous.is_alphanumeric() || previous == '_');
        let goes_on = at.is_alphanumeric() || at == '.' || (at == '-' && number.ends_with('e'));
        if begins || (!number.is_empty() && goes_on) {
            number.push(at);
        } else {
            let is_float = number.contains(['.', 'e']) && !number.starts_with("0x");
            out.push_str(&number);
            out.push_str(if is_float { "f" } else { "" });
            number.clear();
            out.push(at);
        }
        previous = at;
    }
    out
}

/// Without what keeps numbers from being taken apart: a minimum with the largest word is nothing to any compiler.
fn unkept(text: &str) -> String {
    text.replace("4294967294u", "4294967295u")
}

/// A program that reads pairs of operands of the function that its argument names, and writes results.
fn program(functions: &BTreeMap<&str, String>) -> String {
    let mut text = "#include \"metal.h\"\n".to_owned();
    let mut choices = String::new();
    for (name, body) in functions {
        let operands = match body.contains("F a1_") {
            true => "in[2 * i], in[2 * i + 1]",
            false => "in[2 * i]",
        };
        text += &format!(
            "namespace of_{name} {{\n{body}\nvoid run(size_t count, const float* in, float* out) {{\n\
             for (size_t i = 0; i < count; i++) out[i] = apply({operands});\n}}\n}}\n"
        );
        choices += &format!(
            "if (!strcmp(name, \"{name}\")) of_{name}::run(count, in.data(), out.data());\n"
        );
    }
    text + &format!(
        "int main(int, char** arguments) {{\nprepare(*arguments[2] == 'f');\nconst char* name = arguments[1];\n\
         std::vector<float> in(1 << 22);\n\
         size_t count = fread(in.data(), 8, in.size() / 2, stdin);\nstd::vector<float> out(count);\n{choices}\
         return fwrite(out.data(), 4, count, stdout) != count;\n}}\n"
    )
}

/// The one that `CXX` names, or those that are there.
fn compilers() -> Vec<String> {
    let named = std::env::var("CXX").ok();
    let mut names = match named {
        Some(name) => vec![name],
        None => ["clang++", "g++"].map(str::to_owned).to_vec(),
    };
    names.retain(|name| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    });
    names
}

/// A folder that goes with it.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn build(compiler: &str, folder: &Path, name: &str, text: &str) -> PathBuf {
    let [source, object, program] =
        ["cpp", "o", "out"].map(|end| folder.join(format!("{name}.{end}")));
    std::fs::write(&source, text).expect("a file");
    let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shaders");
    // Estimates of quotients, which vectors get, are this processor's. Linked without the flag: that would flush subnormals.
    let compiled = Command::new(compiler)
        .args([
            "-std=c++17",
            "-O2",
            "-ffast-math",
            "-fno-tree-vectorize",
            "-w",
            "-c",
            "-I",
        ])
        .args([&shim, &source, Path::new("-o"), &object])
        .output()
        .expect("the compiler runs");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(compiled.status.success(), "{said:.4000}");
    let linked = Command::new(compiler)
        .args([&object, Path::new("-o"), &program])
        .status();
    assert!(linked.is_ok_and(|status| status.success()));
    program
}

/// Pairs: random bits, what functions are used for, and edges.
fn operands(name: &str) -> Vec<[f32; 2]> {
    let mut random = Random(1);
    let mut next = move || (random.next() >> 32) as u32;
    let mut pairs = vec![];
    for at in 0..400_000 {
        let mut between =
            |low: f32, high: f32| low + (high - low) * (next() as f32 * 2f32.powi(-32));
        let x = match at % 5 {
            0 => between(-20.0, 20.0),
            1 => between(-1000.0, 1000.0),
            2 if ["asin", "acos", "atanh"].contains(&name) => between(-1.0, 1.0),
            2 => between(0.5, 2.0),
            3 => between(-110.0, 90.0),
            _ => f32::from_bits(next()),
        };
        let mut between =
            |low: f32, high: f32| low + (high - low) * (next() as f32 * 2f32.powi(-32));
        let y = between(-9.0, 9.0);
        pairs.push(match at % 5 {
            // To where the logarithm's last bits count most.
            2 if name == "pow" => [x, 13.8 * y / x.log2()],
            0..=3 if name == "pow" => [x.abs(), y],
            _ => [x, y],
        });
    }
    let edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -3.0,
        88.5,
        127.9,
        f32::MIN_POSITIVE,
        -1e-7,
        3e38,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    pairs.extend(edges.iter().flat_map(|&x| edges.map(|y| [x, y])));
    pairs
}

/// How far the worst result is off, of its bound; edges count as infinitely far where they are wrong.
fn worst(program: &Path, case: &Case, pairs: &[[f32; 2]], flushed: bool) -> (f64, String) {
    let is_seen = |pair: &&[f32; 2]| !(flushed && pair.iter().any(|x| x.is_subnormal()));
    let pairs: Vec<[f32; 2]> = pairs.iter().filter(is_seen).copied().collect();
    let mut child = Command::new(program)
        .args([case.name, if flushed { "flushed" } else { "kept" }])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut input = child.stdin.take().expect("its input");
    let bytes: Vec<u8> = bytemuck::cast_slice(&pairs).to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().expect("its results");
    writer.join().expect("no panic").expect("it reads");
    let results: Vec<f32> = bytemuck::pod_collect_to_vec(&output.stdout);
    assert_eq!(results.len(), pairs.len());
    let mut worst = (0.0, String::new());
    for (&[x, y], &got) in pairs.iter().zip(&results) {
        let want = (case.exact)(x.into(), y.into());
        let single = want as f32;
        let is_edge = !single.is_finite() || !x.is_finite();
        let exponent = want.abs().log2().floor().max(-126.0);
        let bound = case.ulps * (exponent - 23.0).exp2() + case.of_operand * f64::from(x).abs();
        let off = (f64::from(got) - want).abs();
        let is_tiny = want.abs() < 1.2e-38 && got.abs() < 1.2e-38;
        // 0 times infinity, which the functions do not meet.
        let of_infinity = ["gelu", "gelu_tanh", "silu"].contains(&case.name)
            && x == f32::NEG_INFINITY
            && got == 0.0;
        let share = match is_edge {
            // Of an infinity, an angle.
            true if single.is_finite() && off <= bound => 0.0,
            true if got == single || (got.is_nan() && single.is_nan()) || of_infinity => 0.0,
            true => f64::INFINITY,
            false if is_tiny || off == 0.0 => 0.0,
            false if got.is_nan() => f64::INFINITY,
            false => off / bound,
        };
        if share > worst.0 {
            worst = (
                share,
                format!("{}({x:e}, {y:e}) = {got:e}, not {want:e}", case.name),
            );
        }
    }
    worst
}

#[test]
fn functions_hold_where_sums_are_taken_apart() {
    let compilers = compilers();
    if compilers.is_empty() {
        assert!(
            std::env::var_os("ORLOP_TEST_REQUIRE").is_none(),
            "no C++ compiler: install g++, or name one in CXX"
        );
        println!("not run: no C++ compiler");
        return;
    }
    let kept: BTreeMap<_, _> = cases()
        .iter()
        .map(|case| (case.name, functions(kernel(case.name))))
        .collect();
    let taken_apart = kept.iter().map(|(&name, text)| (name, unkept(text)));
    let taken_apart = taken_apart.collect();
    let name = format!("orlop-fast-math-{}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    for compiler in compilers {
        let right = build(&compiler, &folder.0, "kept", &program(&kept));
        let wrong = build(&compiler, &folder.0, "unkept", &program(&taken_apart));
        let mut broken = vec![];
        for case in cases() {
            let pairs = operands(case.name);
            for flushed in [false, true] {
                let (share, what) = worst(&right, &case, &pairs, flushed);
                println!(
                    "{compiler} {:10} {share:.2} of its bound: {what}",
                    case.name
                );
                assert!(
                    share <= 1.0,
                    "{what}: {share} of its bound, by {compiler}, subnormals flushed: {flushed}"
                );
            }
            if worst(&wrong, &case, &pairs, false).0 > 1.0 {
                broken.push(case.name);
            }
        }
        println!("by {compiler}; not kept, it breaks {broken:?}");
        // Else this compiler takes nothing apart, and nothing is shown.
        assert!(broken.contains(&"log1p"), "{compiler} broke {broken:?}");
    }
}
