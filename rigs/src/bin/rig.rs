//! `rig intel|amd|nested|local [-- CONTRACT ARGUMENTS]` runs the cases there, `rig busy --on BACKEND [-- BUSY ARGUMENTS]`
//! those with a busy stock guest, `rig ground` those in which a stock guest moves the ground under probes; `rig table` puts
//! what was found together. `rig bench --on BACKEND [-- BENCH ARGUMENTS]` measures what probes cost there, and `rig overhead`
//! makes the table of it. `rig sweep` probes every function of a stock kernel, and `rig sweep-page` makes the page of what was
//! found.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use hyprobe_rigs::launch::{self, Launch, LaunchError, Program};
use hyprobe_rigs::line::{Backend, Line};
use hyprobe_rigs::overhead::page;
use hyprobe_rigs::sweep::campaign::Campaign;
use hyprobe_rigs::sweep::{self, Options, Step};
use hyprobe_rigs::table;

/// The stock kernel of a busy guest, if nothing else is said.
const KERNEL: &str = "debian-6.1";

/// Runs the engine's cases on a kind of KVM, and keeps what they say.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where to run them; `table` prints what the last runs found, as Markdown, `overhead` what the last ones of `bench`.
    what: What,
    /// With `bench`, `busy`, `ground`, `sweep`: where; `local` and `nested` if nothing is said.
    #[arg(long, value_parser = backend)]
    on: Option<Backend>,
    /// Where results are kept.
    #[arg(long, default_value = "target/rigs")]
    results: PathBuf,
    /// Seconds until the last line, from the start.
    #[arg(long, default_value_t = 1800)]
    timeout: u64,
    /// Boots a stock kernel, too; with `bench`, on Bochs: elsewhere it does so anyway.
    #[arg(long)]
    stock: bool,
    /// With `table`, `overhead`, `sweep-page`: writes it to docs/contract.md, docs/overhead.md, docs/sweep.md instead of
    /// printing it. With `sweep`: writes docs/sweep.md at the end.
    #[arg(long)]
    write: bool,
    /// The stock kernel of `busy`, `ground` and `sweep`, in the catalog of images.
    #[arg(long, default_value = KERNEL)]
    image: String,
    #[command(flatten)]
    sweep: Options,
    /// For the program that is run, e.g. `--only calls`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// kvm_intel with EPT, in Bochs.
    Intel,
    /// kvm_amd with NPT, in Bochs.
    Amd,
    /// kvm_amd with NPT, in QEMU's TCG.
    Nested,
    /// This machine's own KVM.
    Local,
    /// A busy stock guest.
    Busy,
    /// A stock guest that moves the ground under probes.
    Ground,
    /// The table.
    Table,
    /// What probes cost.
    Bench,
    /// The table of that.
    Overhead,
    /// Every function of a stock kernel is probed.
    Sweep,
    /// The page of that.
    SweepPage,
}

fn backend(word: &str) -> Result<Backend, String> {
    Backend::from_word(word).ok_or_else(|| "one of intel, amd, nested, local".to_owned())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let backend = match arguments.what {
        What::Intel => Backend::Intel,
        What::Amd => Backend::Amd,
        What::Nested => Backend::Nested,
        What::Local => Backend::Local,
        What::Busy | What::Ground | What::Sweep => arguments.on.unwrap_or(Backend::Nested),
        What::Bench => arguments.on.unwrap_or(Backend::Local),
        What::Table => return report(table(&arguments)),
        What::Overhead => return report(overhead(&arguments)),
        What::SweepPage => return report(sweep_page(&arguments)),
    };
    let program = match arguments.what {
        What::Busy => Program::Busy {
            image: &arguments.image,
        },
        What::Ground => Program::Ground {
            image: &arguments.image,
        },
        What::Bench => Program::Bench {
            // In Bochs it takes minutes to boot.
            stock: arguments.stock || matches!(backend, Backend::Local | Backend::Nested),
        },
        _ => Program::Contract {
            stock: arguments.stock,
        },
    };
    // They are built beside this one.
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("rig: cannot say where it is itself: {error}");
            return ExitCode::from(2);
        }
    };
    let programs = own.parent().unwrap_or(&own);
    if arguments.what == What::Sweep {
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
    let launched = result.as_ref().ok().map(|outcome| outcome.cases);
    let result = result.map(|outcome| {
        format!(
            "{} cases, {} failed, {:.0} s; the lines are in {}\n",
            outcome.cases,
            outcome.failed,
            outcome.took.as_secs_f64(),
            outcome.path.display()
        )
    });
    if launched == Some(0) {
        eprintln!("rig: no case was run: `--only` names none of this rig");
        return ExitCode::from(2);
    }
    match (report(result), failed) {
        (code, 0) => code,
        _ => ExitCode::FAILURE,
    }
}

/// What is printed.
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
            let mut text = error.to_string();
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                text = format!("{text}: {cause}");
                source = cause.source();
            }
            eprintln!("rig: error: {text}");
            ExitCode::from(2)
        }
    }
}
