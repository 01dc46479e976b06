//! `hyprobe percpu`.

use control::api::PerCpuVariable;

use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::PerCpuArgs;
use crate::exit::Exit;
use crate::report::printable;
use crate::stderr;

/// Prints per-CPU variables of a kernel, and remarks on standard error.
pub(crate) fn percpu(args: &PerCpuArgs) -> Result<Exit, RemoteError> {
    let list = Viewed::open(&args.view.kernel)?.per_cpu(&args.pattern)?;
    print(&list.variables, args.view.json, || text(&list.variables))?;
    if list.more {
        stderr::say("note: more variables match; a narrower pattern shows them");
    }
    if let Some(remark) = &list.remark {
        stderr::say(format_args!("note: {}", printable(remark)));
    }
    Ok(Exit::Done)
}

/// A line for each variable, and a line for the copy of each processor.
fn text(variables: &[PerCpuVariable]) -> String {
    let mut text = String::new();
    for variable in variables {
        let declared = variable.declared.as_deref();
        let declared = declared.map_or_else(String::new, |declared| format!("{declared}, "));
        let line = format!("{}: {declared}{} bytes", variable.name, variable.size);
        text.push_str(&format!("{}\n", printable(&line)));
        for copy in &variable.copies {
            let value = copy.text.as_deref();
            let value = value.map_or_else(String::new, |value| format!(" = {}", printable(value)));
            text.push_str(&format!("    cpu{} {}{value}\n", copy.cpu, copy.address));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_has_a_line_for_each_processor() {
        let variables = serde_json::json!([
            {"name": "cpu_number", "type": "int", "size": 4, "copies": [
                {"cpu": 0, "address": "0xffff888000001000", "text": "0", "value": 0},
                {"cpu": 1, "address": "0xffff888000002000", "text": "1\u{1b}", "value": 1},
            ]},
            {"name": "untyped", "size": 64, "copies": [{"cpu": 0, "address": "0xffff888000001040"}]},
        ]);
        let variables: Vec<PerCpuVariable> = serde_json::from_value(variables).expect("variables");
        let expected = "cpu_number: int, 4 bytes
    cpu0 0xffff888000001000 = 0
    cpu1 0xffff888000002000 = 1\\x1b
untyped: 64 bytes
    cpu0 0xffff888000001040
";
        assert_eq!(text(&variables), expected);
    }
}
