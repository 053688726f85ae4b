//! About how many operations an invocation of a kernel is: a batch of launches is submitted by what they take.

use naga::{Block, Module, Statement};

/// Turns that a loop is taken for, and one within a loop: what they are is not known before they run. Too many
/// cost a submission, too few a kernel that waits for others.
const TURNS: u64 = 1024;
const INNER_TURNS: u64 = 32;

/// Of the entry point, with all that it calls.
pub(super) fn operations(module: &Module) -> u64 {
    let mut functions = Vec::new();
    for (_, function) in module.functions.iter() {
        functions.push(of(&function.body, &functions, TURNS));
    }
    let entries = module.entry_points.iter();
    let costs = entries.map(|entry| of(&entry.function.body, &functions, TURNS));
    costs.max().unwrap_or(0).max(1)
}

fn of(block: &Block, functions: &[u64], turns: u64) -> u64 {
    let of_all = |blocks: &[&Block], turns: u64| {
        let costs = blocks.iter().map(|block| of(block, functions, turns));
        costs.fold(0, u64::saturating_add)
    };
    let costs = block.iter().map(|statement| match statement {
        Statement::Emit(expressions) => expressions.clone().count() as u64,
        // A valid module calls what was declared before alone.
        Statement::Call { function, .. } => functions.get(function.index()).copied().unwrap_or(1),
        Statement::Block(inner) => of_all(&[inner], turns),
        Statement::If { accept, reject, .. } => of_all(&[accept, reject], turns),
        Statement::Switch { cases, .. } => {
            let bodies: Vec<&Block> = cases.iter().map(|case| &case.body).collect();
            of_all(&bodies, turns)
        }
        Statement::Loop {
            body, continuing, ..
        } => of_all(&[body, continuing], INNER_TURNS).saturating_mul(turns),
        _ => 1,
    });
    costs.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::{INNER_TURNS, TURNS, operations};

    #[test]
    fn loops_are_many_turns() {
        let cost = |body: &str| {
            let text = format!(
                "@group(0) @binding(0) var<storage, read_write> to: array<f32>;
                 fn turns() {{ for (var i = 0; i < 9; i++) {{ to[i] = 1.0; }} }}
                 @compute @workgroup_size(1) fn main() {{ {body} }}"
            );
            operations(&naga::front::wgsl::parse_str(&text).expect("WGSL"))
        };
        let one = cost("to[0] = to[1] + 1.0;");
        assert!((1..20).contains(&one));
        let called = cost("turns();");
        assert!((TURNS..20 * TURNS).contains(&called));
        let nested =
            cost("for (var j = 0; j < 9; j++) { for (var i = 0; i < j; i++) { to[i] = 1.0; } }");
        assert!((TURNS * INNER_TURNS..20 * TURNS * INNER_TURNS).contains(&nested));
        assert!(cost("if to[0] > 1.0 { turns(); } else { turns(); }") >= 2 * called);
    }
}
