//! The table as TOML, for people to read and ship.

use std::fmt::Write;
use std::ops::RangeInclusive;

use toml::{Table, Value};

use super::{ANY, Adapter, MatmulChoice, MatmulTable, OP};
use crate::dtype::DType;
use crate::error::{Error, Result, brief};
use crate::matmul_kernel::MatmulKernel;

impl MatmulTable {
    /// Reads a table from TOML, with the feature `matmul-table`, as [`MatmulTable::to_toml`] writes it: an `[[adapter]]` has a `name`, may
    /// have a `driver`, and has `[[adapter.product]]`s with `dtype`, `kernel` and, each where it matters,
    /// `m`, `k`, `n`, `batches` (a number, or `{ from = 33, to = 128 }`, where either end may lack) and
    /// `vectors` (8, 4 or 1), `split` (parts of k, side by side), `a`, `b` (`"rows"` or `"columns"`: how the operand lies).
    ///
    /// ```
    /// # fn main() -> Result<(), orlop::Error> {
    /// let table = orlop::MatmulTable::from_toml(
    ///     r#"
    ///     [[adapter]]
    ///     name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    ///
    ///     [[adapter.product]]
    ///     dtype = "f32"
    ///     m = { from = 129, to = 512 }
    ///     n = { from = 33 }
    ///     a = "rows"
    ///     kernel = "subgroup_tile 48x32 lanes 8"
    ///     "#,
    /// )?;
    /// assert_eq!(table.choices("llvmpipe (LLVM 15.0.6, 256 bits)", "any driver").len(), 1);
    /// // Of use where that adapter is opened; nothing elsewhere.
    /// let device = orlop::Device::builder().matmul_table(table).build()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for text that is no TOML, a field that lacks, is of another kind or is not known, a
    /// dtype or a kernel that there is not, what [`MatmulTable::push`] refuses; it says which adapter and
    /// product. Notes for people are comments.
    pub fn from_toml(text: &str) -> Result<Self> {
        let root: Table = text
            .parse()
            .map_err(|error: toml::de::Error| refused("no TOML", &error.to_string()))?;
        let mut table = Self::new();
        known(&root, &["adapter"]).map_err(|problem| refused("the file", &problem))?;
        for (at, adapter) in tables(&root, "adapter", "the file")?.enumerate() {
            let place = format!("adapter {}", at + 1);
            let adapter = adapter.map_err(|problem| refused(&place, &problem))?;
            let name = string(adapter, "name")
                .and_then(|name| name.ok_or_else(|| "name lacks".to_owned()))
                .map_err(|problem| refused(&place, &problem))?;
            let driver = string(adapter, "driver").map_err(|problem| refused(&place, &problem))?;
            let place = format!("adapter {name:?}");
            known(adapter, &["name", "driver", "product"])
                .map_err(|problem| refused(&place, &problem))?;
            for (at, product) in tables(adapter, "product", &place)?.enumerate() {
                let choice = product.and_then(choice).map_err(|problem| {
                    refused(&format!("{place}, product {}", at + 1), &problem)
                })?;
                table.append(name, driver, choice);
            }
        }
        Ok(table)
    }

    /// The table as TOML, with the feature `matmul-table`: one block an adapter and one a choice, in their order.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for adapter in &self.adapters {
            // Writing to a string does not fail.
            let _ = write_adapter(&mut text, adapter);
        }
        text
    }
}

fn refused(place: &str, problem: &str) -> Error {
    Error::invalid(OP, format!("{}: {}", brief(place), brief(problem)))
}

/// The keys of a product.
const PRODUCT: [&str; 10] = [
    "dtype", "m", "k", "n", "batches", "a", "b", "vectors", "split", "kernel",
];

/// # Errors
/// A key that says nothing here: a slip, mostly.
fn known(table: &Table, keys: &[&str]) -> Read<()> {
    match table.keys().find(|key| !keys.contains(&key.as_str())) {
        None => Ok(()),
        Some(other) => Err(format!("{other:?} is not known, but {}", keys.join(", "))),
    }
}

type Read<T> = std::result::Result<T, String>;

/// The tables of an array of them; none where it lacks.
fn tables<'a>(
    parent: &'a Table,
    key: &str,
    place: &str,
) -> Result<impl Iterator<Item = Read<&'a Table>> + use<'a>> {
    let array = match parent.get(key) {
        None => &[][..],
        Some(Value::Array(array)) => array,
        Some(other) => {
            let problem = format!("{key} is {}, not [[{key}]] tables", other.type_str());
            return Err(refused(place, &problem));
        }
    };
    Ok(array.iter().map(|item| {
        let table = item.as_table();
        table.ok_or_else(|| format!("{}, not a table", item.type_str()))
    }))
}

fn string<'a>(table: &'a Table, key: &str) -> Read<Option<&'a str>> {
    match table.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("{key} is {}, not a string", other.type_str())),
    }
}

fn choice(table: &Table) -> Read<MatmulChoice> {
    known(table, &PRODUCT)?;
    let needed = |key: &str| string(table, key)?.ok_or_else(|| format!("{key} lacks"));
    let dtype: DType = needed("dtype")?
        .parse()
        .map_err(|error: Error| error.to_string())?;
    let kernel: MatmulKernel = needed("kernel")?
        .parse()
        .map_err(|error: Error| error.to_string())?;
    let lies = |key: &str, along_k: &str, across: &str| match string(table, key)? {
        None => Ok(None),
        Some(text) if text == along_k => Ok(Some(true)),
        Some(text) if text == across => Ok(Some(false)),
        Some(other) => Err(format!(
            "{key} is {other:?}, neither \"rows\" nor \"columns\""
        )),
    };
    let choice = MatmulChoice {
        m: sizes(table, "m")?,
        k: sizes(table, "k")?,
        n: sizes(table, "n")?,
        batches: sizes(table, "batches")?,
        a_along_k: lies("a", "rows", "columns")?,
        b_along_k: lies("b", "columns", "rows")?,
        vectors: match table
            .get("vectors")
            .map(|value| (value, value.as_integer()))
        {
            None => None,
            Some((_, Some(vectors @ (1 | 4 | 8)))) => Some(vectors as u32),
            Some((other, _)) => return Err(format!("vectors is {other}, none of 8, 4, 1")),
        },
        split: match table.get("split") {
            None => 1,
            Some(value) => {
                let parts = value.as_integer().and_then(|parts| parts.try_into().ok());
                parts.ok_or_else(|| format!("split is no number of parts: {value}"))?
            }
        },
        ..MatmulChoice::new(dtype, kernel)
    };
    choice.check()?;
    Ok(choice)
}

fn sizes(table: &Table, key: &str) -> Read<RangeInclusive<usize>> {
    let number = |name: &str, value: &Value| {
        let number = value
            .as_integer()
            .and_then(|number| usize::try_from(number).ok());
        number.ok_or_else(|| format!("{name} is no size: {value}"))
    };
    let Some(value) = table.get(key) else {
        return Ok(ANY);
    };
    let Some(ends) = value.as_table() else {
        let one = number(key, value)?;
        return Ok(one..=one);
    };
    if let Some(other) = ends
        .keys()
        .find(|key| !["from", "to"].contains(&key.as_str()))
    {
        return Err(format!("{key} has {other}, but knows from and to"));
    }
    let end = |name: &str, otherwise: usize| {
        let value = ends.get(name);
        value.map_or(Ok(otherwise), |value| {
            number(&format!("{key}.{name}"), value)
        })
    };
    let range = end("from", *ANY.start())?..=end("to", *ANY.end())?;
    if range.is_empty() {
        return Err(format!("{key} ends before it starts"));
    }
    Ok(range)
}

fn write_adapter(text: &mut String, adapter: &Adapter) -> std::fmt::Result {
    let quoted = |text: &str| Value::String(text.to_owned());
    writeln!(text, "[[adapter]]\nname = {}", quoted(&adapter.name))?;
    if let Some(driver) = &adapter.driver {
        writeln!(text, "driver = {}", quoted(driver))?;
    }
    for choice in &adapter.choices {
        writeln!(
            text,
            "\n[[adapter.product]]\ndtype = {}",
            quoted(choice.dtype.name())
        )?;
        for (key, sizes) in [
            ("m", &choice.m),
            ("k", &choice.k),
            ("n", &choice.n),
            ("batches", &choice.batches),
        ] {
            // TOML's integers have 63 bits.
            let most = i64::MAX as u64;
            let is_open = u64::try_from(*sizes.end()).is_ok_and(|end| end >= most);
            match (*sizes.start(), *sizes.end()) {
                (0, _) if is_open => {}
                (from, _) if is_open => writeln!(text, "{key} = {{ from = {from} }}")?,
                (from, to) if from == to => writeln!(text, "{key} = {from}")?,
                (0, to) => writeln!(text, "{key} = {{ to = {to} }}")?,
                (from, to) => writeln!(text, "{key} = {{ from = {from}, to = {to} }}")?,
            }
        }
        let lies = [
            ("a", choice.a_along_k, ["columns", "rows"]),
            ("b", choice.b_along_k, ["rows", "columns"]),
        ];
        for (key, along_k, names) in lies {
            if let Some(along_k) = along_k {
                writeln!(text, "{key} = {}", quoted(names[usize::from(along_k)]))?;
            }
        }
        if choice.split > 1 {
            writeln!(text, "split = {}", choice.split)?;
        }
        if let Some(vectors) = choice.vectors {
            writeln!(text, "vectors = {vectors}")?;
        }
        writeln!(text, "kernel = {}", quoted(&choice.kernel.to_string()))?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        MatmulTable::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut table = MatmulTable::new();
        let ends = [0, 1, 7, 128, usize::MAX >> 23, usize::MAX];
        let dtypes = DType::ALL
            .iter()
            .copied()
            .filter(|&dtype| dtype != DType::Bool);
        let dtypes: Vec<DType> = dtypes.collect();
        let mut at = 0;
        for &kernel in MatmulKernel::all() {
            for (from, to) in ends.iter().flat_map(|&from| ends.map(|to| (from, to))) {
                at += 1;
                if from > to || from == usize::MAX {
                    continue;
                }
                let lies = |part: usize| [None, Some(true), Some(false)][part % 3];
                let choice = MatmulChoice {
                    m: from..=to,
                    batches: if at % 3 == 0 { ANY } else { from..=to },
                    a_along_k: lies(at),
                    b_along_k: lies(at / 3),
                    vectors: [None, Some(1), Some(4), Some(8)][at % 4],
                    split: [1, 8, 1024][at % 3],
                    ..MatmulChoice::new(dtypes[at % dtypes.len()], kernel)
                };
                let driver = (at % 2 == 0).then_some("driver, 1.2");
                let name = "a \"quoted\" \\ name\n";
                table.push(name, driver, choice).unwrap();
            }
        }
        assert_eq!(MatmulTable::from_toml(&table.to_toml()).unwrap(), table);
    }

    /// Of long lines and names what they begin with.
    #[test]
    fn problems_are_brief() {
        let long = "x".repeat(200_000);
        for text in [
            format!("= {long}"),
            format!("{long} = 7"),
            format!("[[adapter]]\nname = \"{long}\"\nproduct = 7"),
            format!("[[adapter]]\nname = \"y\"\n[[adapter.product]]\ndtype = \"{long}\""),
        ] {
            let problem = problem(&text);
            assert!(problem.len() < 6000, "{} bytes", problem.len());
        }
        let problem = problem(&format!("[[adapter]]\nname = \"{long}\"\nproduct = 7"));
        assert!(problem.contains("product is integer"), "{problem}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(problem("= 7").contains("no TOML"));
        assert!(problem("adapter = 7").contains("adapter is integer"));
        assert!(problem("[[adapter]]").contains("adapter 1: name lacks"));
        assert!(problem("[[adapter]]\nname = 7").contains("name is integer"));
        assert!(problem("[[adaptor]]\nname = \"x\"").contains("the file: \"adaptor\""));
        let products = problem("[[adapter]]\nname = \"x\"\n[[adapter.products]]");
        assert!(
            products.contains("adapter \"x\": \"products\""),
            "{products}"
        );
        let product = |fields: &str| {
            problem(&format!(
                "[[adapter]]\nname = \"x\"\n[[adapter.product]]\n{fields}"
            ))
        };
        let kernel = "kernel = \"wide_tile 32x64\"";
        for (fields, expected) in [
            (kernel.to_owned(), "dtype lacks"),
            ("dtype = \"f32\"".to_owned(), "kernel lacks"),
            (format!("dtype = \"f31\"\n{kernel}"), "f31"),
            (format!("dtype = \"bool\"\n{kernel}"), "no products of bool"),
            (
                "dtype = \"f32\"\nkernel = \"huge\"".to_owned(),
                "no kernel \"huge\"",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nm = -1"),
                "m is no size: -1",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nk = {{ form = 3 }}"),
                "k has form",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nn = {{ from = 3, to = 2 }}"),
                "n ends before it starts",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nvectors = 3"),
                "vectors is 3, none of",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nsplit = \"half\""),
                "split is no number of parts",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nbatchs = 7"),
                "\"batchs\" is not known",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nsplit = 0"),
                "split: k in 0 parts",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\nm = {{ from = 9223372036854775807 }}"),
                "m: no size is in",
            ),
            (
                format!("dtype = \"f32\"\n{kernel}\na = \"diagonal\""),
                "neither \"rows\" nor",
            ),
        ] {
            let error = product(&fields);
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("adapter \"x\", product 1"), "{error}");
        }
    }
}
