//! A manifest, and the report on the manifest's problems.

#![cfg_attr(fuzzing, no_main)]

use std::fmt;
use std::path::Path;

use hyprobe_fuzz::fuzz_target;
use manifest::{InvalidManifest, Manifest, ProbeConfig, Problem};
use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme, LabeledSpan, SourceCode};

fuzz_target!(|text: &str| {
    match Manifest::parse(text, "run.toml", Path::new("/etc/run")) {
        Ok(manifest) => {
            manifest.probes.iter().for_each(check_probe);
            for expectation in &manifest.expectations {
                let _ = expectation.to_string();
                for (spec, _) in expectation.probes() {
                    assert_eq!(spec.to_string().parse().as_ref(), Ok(spec));
                }
            }
        }
        Err(error) => {
            assert!(!error.problems().is_empty());
            for problem in error.problems() {
                report(text, &error, problem);
            }
        }
    }
});

fn check_probe(config: &ProbeConfig) {
    let ProbeConfig {
        at, filter, action, ..
    } = config;
    assert_eq!(at.to_string().parse().as_ref(), Ok(at));
    if let Some(filter) = filter {
        assert_eq!(filter.to_string().parse().as_ref(), Ok(filter));
    }
    if let Some(aggregate) = action.aggregate() {
        assert_eq!(aggregate.to_string().parse().as_ref(), Ok(aggregate));
    }
}

/// Draws a problem, as the command does.
fn report(text: &str, manifest: &InvalidManifest, problem: &Problem) {
    let (start, len) = (problem.span().offset(), problem.span().len());
    assert!(
        text.get(start..start + len).is_some(),
        "{problem:?}: {:?}",
        problem.span()
    );
    let _ = (manifest.place(problem), problem.to_string());
    if !manifest.has_short_lines(problem) {
        return;
    }
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_links(false)
        .with_width(100);
    let mut drawn = String::new();
    let done = handler.render_report(&mut drawn, &Located { problem, manifest });
    assert!(done.is_ok() && !drawn.is_empty(), "{problem:?}");
}

/// A problem together with the manifest's text.
#[derive(Debug)]
struct Located<'a> {
    problem: &'a Problem,
    manifest: &'a InvalidManifest,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problem.fmt(f)
    }
}

impl std::error::Error for Located<'_> {}

impl Diagnostic for Located<'_> {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.problem.help()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.problem.labels()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.manifest.source_code()
    }
}
