//! `hyprobe check --all`: which functions' probes can do without VM exits.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use events::Hex;
use probes::{FunctionVerdict, functions};
use serde::Serialize;

use super::CheckError;
use crate::cli::CheckArgs;
use crate::exit::Exit;
use crate::kernel_input::KernelInput;
use crate::report::Progress;
use crate::run::guest::{GuestError, load_kernel};
use crate::run::images;

/// A line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    function: &'a str,
    ip: Hex,
    ftrace: bool,
    optimisable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<Hex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    what: Option<String>,
}

/// The number of functions, and of functions traceable by ftrace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Tally {
    functions: usize,
    ftrace: usize,
}

impl Tally {
    fn count(&mut self, found: &FunctionVerdict) {
        self.functions += 1;
        self.ftrace += usize::from(found.traced);
    }
}

/// The last line of `--json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Totals {
    all: Tally,
    optimisable: Tally,
    one_instruction: Tally,
    not: BTreeMap<&'static str, Tally>,
}

impl Totals {
    fn of(functions: &[FunctionVerdict]) -> Self {
        let mut totals = Self::default();
        for found in functions {
            totals.all.count(found);
            match &found.verdict {
                Ok(region) => {
                    totals.optimisable.count(found);
                    if region.instructions == 1 {
                        totals.one_instruction.count(found);
                    }
                }
                Err(why) => totals.not.entry(why.name()).or_default().count(found),
            }
        }
        totals
    }
}

/// Prints for each function whether a jump can replace the probe at the entry, and adds up the results.
pub(super) fn check(args: &CheckArgs) -> Result<Exit, CheckError> {
    let progress = Progress::on_stderr();
    let found = judged(args, &progress);
    progress.clear();
    let found = found?;
    let mut out = BufWriter::new(io::stdout().lock());
    match print(&found, args.json, &mut out) {
        Ok(()) => Ok(Exit::Done),
        // The reader has closed the pipe: no more lines are wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(error) => Err(CheckError::Write(error)),
    }
}

fn judged(args: &CheckArgs, progress: &Progress) -> Result<Vec<FunctionVerdict>, GuestError> {
    let say = |text| progress.say(text);
    let input = match (&args.kernel, &args.image) {
        (Some(path), _) => KernelInput::File(path.clone()),
        (None, name) => {
            KernelInput::Cached(images::kernel(name.as_deref().unwrap_or_default(), &say)?)
        }
    };
    let (_, _, kernel) = load_kernel(&input, &say)?;
    Ok(functions(&kernel))
}

fn print(found: &[FunctionVerdict], json: bool, out: &mut impl Write) -> io::Result<()> {
    for function in found {
        if json {
            serde_json::to_writer(&mut *out, &line(function))?;
            writeln!(out)?;
            continue;
        }
        let (verdict, what) = match &function.verdict {
            Ok(region) => {
                let ending = if region.instructions == 1 { "" } else { "s" };
                let (bytes, instructions) = (region.region_len, region.instructions);
                let at = function.at;
                let what = format!("{bytes} bytes, {instructions} instruction{ending} at {at}");
                ("optimisable", what)
            }
            Err(why) => ("not", why.to_string()),
        };
        writeln!(out, "{:<40}  {verdict:<11}  {what}", function.name)?;
    }
    let totals = Totals::of(found);
    if json {
        serde_json::to_writer(&mut *out, &serde_json::json!({ "totals": totals }))?;
        writeln!(out)?;
    } else {
        table(&totals, out)?;
    }
    out.flush()
}

fn line(found: &FunctionVerdict) -> Line<'_> {
    let region = found.verdict.as_ref().ok();
    let why = found.verdict.as_ref().err();
    Line {
        function: &found.name,
        ip: found.ip.into(),
        ftrace: found.traced,
        optimisable: region.is_some(),
        at: region.map(|_| found.at.into()),
        bytes: region.map(|region| region.region_len),
        instructions: region.map(|region| region.instructions),
        why: why.map(|why| why.name()),
        what: why.map(ToString::to_string),
    }
}

fn table(totals: &Totals, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{:<28}{:>9}  {:>11}", "", "functions", "ftrace-able")?;
    let mut row = |name: &str, tally: &Tally, note: String| {
        let (functions, ftrace) = (tally.functions, tally.ftrace);
        writeln!(out, "{name:<28}{functions:>9}  {ftrace:>11}{note}")
    };
    row("all", &totals.all, String::new())?;
    let share = match totals.all.ftrace {
        0 => String::new(),
        all => format!(
            "  {:.1} %",
            totals.optimisable.ftrace as f64 * 100.0 / all as f64
        ),
    };
    row("optimisable", &totals.optimisable, share)?;
    row(
        "  in one instruction",
        &totals.one_instruction,
        String::new(),
    )?;
    let mut reasons: Vec<_> = totals.not.iter().collect();
    reasons.sort_by_key(|(name, tally)| (std::cmp::Reverse(tally.functions), **name));
    for (name, tally) in reasons {
        row(&format!("not: {name}"), tally, String::new())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use address::Gva;
    use introspect::optimise::{Optimisable, WhyNot};

    use super::*;

    fn found() -> Vec<FunctionVerdict> {
        let at = Gva(0xffff_ffff_8100_0005);
        let of = |name: &str, traced, verdict| FunctionVerdict {
            name: name.to_owned(),
            ip: Gva(0xffff_ffff_8100_0000),
            at,
            traced,
            verdict,
        };
        let region = |region_len, instructions| {
            Ok(Optimisable {
                region_len,
                instructions,
                ends: false,
                boot_patched: false,
            })
        };
        vec![
            of("vfs_read", true, region(7, 3)),
            of("__vfs", false, region(5, 1)),
            of("vfs_write", true, Err(WhyNot::Call { at })),
        ]
    }

    fn printed(json: bool) -> String {
        let mut out = Vec::new();
        print(&found(), json, &mut out).expect("print");
        String::from_utf8(out).expect("utf-8")
    }

    #[test]
    fn every_function_has_a_line_and_reasons_are_added_up() {
        let text = printed(false);
        let words: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let read = "vfs_read optimisable 7 bytes, 3 instructions at 0xffffffff81000005";
        assert_eq!(words[0].join(" "), read);
        assert_eq!(words[1][4..6], ["1", "instruction"]);
        assert_eq!(words[2][..3], ["vfs_write", "not", "there"]);
        let table: Vec<String> = words[5..].iter().map(|line| line.join(" ")).collect();
        assert_eq!(
            table,
            [
                "all 3 2",
                "optimisable 2 1 50.0 %",
                "in one instruction 1 0",
                "not: call 1 1"
            ]
        );
    }

    #[test]
    fn json_has_the_same() {
        let text = printed(true);
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("json"))
            .collect();
        assert_eq!(lines[0]["bytes"], 7);
        assert_eq!(lines[0]["ftrace"], true);
        assert!(lines[0].get("why").is_none());
        assert_eq!(lines[2]["why"], "call");
        assert!(lines[2].get("at").is_none());
        let totals = &lines[3]["totals"];
        assert_eq!(totals["optimisable"]["functions"], 2);
        assert_eq!(totals["not"]["call"]["ftrace"], 1);
    }
}
