//! `rig intel|amd|nested|local [-- CONTRACT ARGUMENTS]` runs the cases on a kind of KVM, `rig busy --on BACKEND [-- BUSY ARGUMENTS]` the
//! cases with a busy stock guest, `rig ground` the cases with a stock guest that changes its own kernel under the probes. `rig table`
//! makes a table of the results. `rig bench --on BACKEND [-- BENCH ARGUMENTS]` measures the cost of probes on a kind of KVM, and
//! `rig overhead` makes the table of the costs. `rig sweep` probes every function of a stock kernel, and `rig sweep-page` makes the page
//! of the results.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use errors::chain;
use hyprobe_rigs::launch::{self, Launch, LaunchError, Program};
use hyprobe_rigs::line::{Backend, Line};
use hyprobe_rigs::overhead::page;
use hyprobe_rigs::sweep::campaign::Campaign;
use hyprobe_rigs::sweep::{self, Options, Step};
use hyprobe_rigs::table;

/// The stock kernel of a busy guest, if nothing else is said.
const KERNEL: &str = "debian-6.1";

/// Runs the engine's cases on a kind of KVM, and keeps the results.
#[derive(Debug, Parser)]
struct Arguments {
    /// The kind of KVM to run the cases on, or a command: `table` prints the results of the last runs as Markdown, `overhead` the results
    /// of the last runs of `bench`.
    what: RigCommand,
    /// With `bench`, `busy`, `ground`, `sweep`: the kind of KVM; by default `local` for `bench`, and `nested` for the others.
    #[arg(long, value_parser = backend)]
    on: Option<Backend>,
    /// Where results are kept.
    #[arg(long, default_value = "target/rigs")]
    results: PathBuf,
    /// Seconds until the last line, from the start.
    #[arg(long, default_value_t = 1800)]
    timeout: u64,
    /// Boots a stock kernel, too; with `bench`, needed on Bochs only: elsewhere `bench` always boots the kernel.
    #[arg(long)]
    stock: bool,
    /// With `table`, `overhead`, `sweep-page`: writes docs/contract.md, docs/overhead.md, docs/sweep.md instead of printing the text.
    /// With `sweep`: writes docs/sweep.md at the end.
    #[arg(long)]
    write: bool,
    /// The stock kernel of `busy`, `ground` and `sweep`, in the catalog of images.
    #[arg(long, default_value = KERNEL)]
    image: String,
    #[command(flatten)]
    sweep: Options,
    /// Arguments for the started program, e.g. `--only calls`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RigCommand {
    /// kvm_intel with EPT, in Bochs.
    Intel,
    /// kvm_amd with NPT, in Bochs.
    Amd,
    /// kvm_amd with NPT, in QEMU's TCG.
    Nested,
    /// KVM on the local machine.
    Local,
    /// A busy stock guest.
    Busy,
    /// A stock guest that changes its own kernel under the probes.
    Ground,
    /// The table.
    Table,
    /// The cost of probes.
    Bench,
    /// The table of the costs.
    Overhead,
    /// Every function of a stock kernel is probed.
    Sweep,
    /// The page of the sweep.
    SweepPage,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let backend = match arguments.what {
        RigCommand::Intel => Backend::Intel,
        RigCommand::Amd => Backend::Amd,
        RigCommand::Nested => Backend::Nested,
        RigCommand::Local => Backend::Local,
        RigCommand::Busy | RigCommand::Ground | RigCommand::Sweep => {
            arguments.on.unwrap_or(Backend::Nested)
        }
        RigCommand::Bench => arguments.on.unwrap_or(Backend::Local),
        RigCommand::Table => return report(table(&arguments)),
        RigCommand::Overhead => return report(overhead(&arguments)),
        RigCommand::SweepPage => return report(sweep_page(&arguments)),
    };
    let program = match arguments.what {
        RigCommand::Busy => Program::Busy {
            image: &arguments.image,
        },
        RigCommand::Ground => Program::Ground {
            image: &arguments.image,
        },
        RigCommand::Bench => Program::Bench {
            // Bochs takes minutes to boot a stock kernel.
            stock: arguments.stock || matches!(backend, Backend::Local | Backend::Nested),
        },
        _ => Program::Contract {
            stock: arguments.stock,
        },
    };
    // Cargo builds the programs into the directory of `rig`.
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("rig: cannot say where it is itself: {error}");
            return ExitCode::from(2);
        }
    };
    let programs = own.parent().unwrap_or(&own);
    if arguments.what == RigCommand::Sweep {
        return sweep(&arguments, backend, programs);
    }
    let launch = Launch {
        backend,
        program,
        programs,
        results: &arguments.results,
        timeout: Duration::from_secs(arguments.timeout),
        arguments: &arguments.arguments,
    };
    let result = launch::run(&launch, &|line| show(line));
    let failed = match &result {
        Ok(outcome) => outcome.failed,
        Err(_) => 0,
    };
    let result = result.map(|outcome| {
        format!(
            "{} cases, {} failed, {:.0} s; the lines are in {}\n",
            outcome.cases,
            outcome.failed,
            outcome.took.as_secs_f64(),
            outcome.path.display()
        )
    });
    match (report(result), failed) {
        (code, 0) => code,
        _ => ExitCode::FAILURE,
    }
}

/// The text to print: the table, or the path of the written page.
fn table(arguments: &Arguments) -> Result<String, LaunchError> {
    let page = table::from_results(&arguments.results)?;
    if !arguments.write {
        return Ok(page);
    }
    launch::write(Path::new(table::PAGE), &page)?;
    Ok(format!("written to {}\n", table::PAGE))
}

fn overhead(arguments: &Arguments) -> Result<String, LaunchError> {
    let page = page::from_results(&arguments.results)?;
    if !arguments.write {
        return Ok(page);
    }
    launch::write(Path::new(page::PAGE), &page)?;
    Ok(format!("written to {}\n", page::PAGE))
}

fn sweep_page(arguments: &Arguments) -> Result<String, LaunchError> {
    let page = sweep::page::from_results(&arguments.results)?;
    if !arguments.write {
        return Ok(page);
    }
    launch::write(Path::new(sweep::page::PAGE), &page)?;
    Ok(format!("written to {}\n", sweep::page::PAGE))
}

/// The exit code is 1 when a function was harmed.
fn sweep(arguments: &Arguments, backend: Backend, programs: &Path) -> ExitCode {
    let campaign = Campaign {
        backend,
        image: &arguments.image,
        options: &arguments.sweep,
        programs,
        results: &arguments.results,
        timeout: Duration::from_secs(arguments.timeout),
    };
    let cells = match campaign.run(&|line| show(line)) {
        Ok(cells) => cells,
        Err(error) => return report(Err(error)),
    };
    if arguments.write {
        let written = report(sweep_page(arguments));
        if written != ExitCode::SUCCESS {
            return written;
        }
    }
    match cells.iter().any(|cell| cell.has_harm()) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

fn show(line: &Line) {
    match line {
        Line::Host { backend, facts, .. } => println!("{backend}: {facts}"),
        Line::Case(case) => {
            let mark = match case.ok {
                Some(true) => "ok  ",
                Some(false) => "FAIL",
                None => "-   ",
            };
            println!(
                "{mark} {:24} {:6} ms  {}",
                case.case, case.took_ms, case.detail
            );
        }
        Line::Sweep(Step::Booting { .. }) => {}
        Line::Sweep(step) => println!("{step}"),
        Line::Run { .. } | Line::Timing(_) | Line::Arming(_) | Line::Boot(_) | Line::End { .. } => {
        }
    }
}

fn report(result: Result<String, LaunchError>) -> ExitCode {
    match result {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("rig: error: {}", chain(error));
            ExitCode::from(2)
        }
    }
}
