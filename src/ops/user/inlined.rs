//! How large a kernel is once each call is the body that it calls: so drivers compile it.

use naga::{Block, Function, Handle, Module, Statement};

/// Most expressions and statements: more than 64 KiB of text hold, so that a kernel without functions is never above.
const MOST: u64 = 1 << 17;

/// Says what is wrong with a module that naga found valid: functions that call each other twice and twice again
/// would keep the driver's compiler for ever.
pub(super) fn too_large(module: &Module) -> Option<String> {
    let largest = largest(module, 1, |_, function| function.expressions.len() as u64);
    (largest > MOST).then(|| {
        format!(
            "with every call replaced by what it calls, as drivers compile it, it is {largest} expressions and \
             statements, above {MOST}: call less, or loop"
        )
    })
}

/// What the largest entry point has of its `own`, with all that it calls, once for each call, and so much for each statement.
/// Entry points have no handle.
pub(super) fn largest(
    module: &Module,
    per_statement: u64,
    own: impl Fn(Option<Handle<Function>>, &Function) -> u64,
) -> u64 {
    let mut sizes: Vec<u64> = Vec::new();
    for (handle, function) in module.functions.iter() {
        sizes.push(size(
            function,
            own(Some(handle), function),
            per_statement,
            &sizes,
        ));
    }
    let entries = module.entry_points.iter();
    let entries = entries.map(|entry| &entry.function);
    let sizes = entries.map(|entry| size(entry, own(None, entry), per_statement, &sizes));
    sizes.max().unwrap_or(0)
}

/// A function's own size and that of its statements, with those of the functions before it that it calls.
fn size(function: &Function, own: u64, per_statement: u64, sizes: &[u64]) -> u64 {
    let mut size = own;
    for_each_statement(&function.body, |statement| {
        size = size.saturating_add(per_statement);
        if let Statement::Call { function, .. } = statement {
            // A valid module calls what was declared before alone.
            let callee = sizes.get(function.index());
            size = size.saturating_add(callee.copied().unwrap_or(u64::MAX));
        }
    });
    size
}

/// All statements of a block, those in others within it too.
pub(super) fn for_each_statement<'a>(block: &'a Block, mut of: impl FnMut(&'a Statement)) {
    let mut blocks = vec![block];
    while let Some(block) = blocks.pop() {
        for statement in block {
            of(statement);
            match statement {
                Statement::Block(inner) => blocks.push(inner),
                Statement::If { accept, reject, .. } => blocks.extend([accept, reject]),
                Statement::Switch { cases, .. } => {
                    blocks.extend(cases.iter().map(|case| &case.body));
                }
                Statement::Loop {
                    body, continuing, ..
                } => blocks.extend([body, continuing]),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::too_large;

    /// `main` calls the last function; each calls the one before it `calls` times, in statements of every kind.
    fn kernel(functions: usize, calls: usize) -> String {
        let mut text = "fn g0(x: f32) -> f32 { return x + 1; }".to_owned();
        for at in 1..=functions {
            let call = format!("y += g{}(y);", at - 1);
            let kinds = [
                call.clone(),
                format!("if y > 0 {{ {call} }} else {{ y = 1; }}"),
                format!("if y > 0 {{ y = 1; }} else {{ {call} }}"),
                format!("switch i32(y) {{ case 1: {{ {call} }} default: {{}} }}"),
                format!("loop {{ {call} break; }}"),
                format!("loop {{ if y > 9 {{ break; }} continuing {{ {call} }} }}"),
                format!("{{ {call} }}"),
            ];
            let body: String = (0..calls)
                .map(|at| kinds[at % kinds.len()].as_str())
                .collect();
            text += &format!("fn g{at}(x: f32) -> f32 {{ var y = x; {body} return y; }}");
        }
        format!(
            "@group(0) @binding(0) var<storage, read_write> to: array<f32>; {text} \
             @compute @workgroup_size(1) fn main() {{ to[0] = g{functions}(2); }}"
        )
    }

    fn refused(text: &str) -> Option<String> {
        let module = naga::front::wgsl::parse_str(text).expect("WGSL");
        too_large(&module)
    }

    #[test]
    fn calls_are_counted_as_what_they_call() {
        assert_eq!(refused(&kernel(400, 1)), None);
        assert_eq!(refused(&kernel(10, 2)), None);
        assert_eq!(refused(&kernel(2, 60)), None);
        assert!(refused(&kernel(20, 2)).is_some_and(|why| why.contains("above 131072")));
        assert!(refused(&kernel(7, 7)).is_some());
        assert!(refused(&kernel(400, 2)).is_some(), "beyond 64 bits");
    }
}
