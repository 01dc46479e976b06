//! The sums over all boots of a run.

use std::collections::BTreeMap;

use super::boot::Booted;
use super::hits;
use super::program::Program;
use super::record::How;
use super::snippet::Snippet;

/// The maximum number of reported snippets with the same differing fields, and the maximum number of reported words of a snippet.
const REPORTED_OF_A_KIND: usize = 4;
const REPORTED_OF_A_SNIPPET: usize = 12;
/// The sums over all boots of a run.
#[derive(Debug, Default)]
pub(super) struct Totals {
    snippets: usize,
    instructions: usize,
    left: BTreeMap<&'static str, usize>,
    probes: usize,
    hits: u64,
    exits: u64,
    stepped: usize,
    /// How the first boot without probes ended, if not well.
    pub(super) first_bad_end: Option<String>,
    /// Instructions that the KVM cannot execute without probes either, and the number of snippets with them.
    pub(super) left_out: BTreeMap<String, usize>,
    /// By the fields in which they differ: how many snippets, and some of them.
    different: BTreeMap<String, (usize, Vec<String>)>,
}

impl Totals {
    /// Notes a wrong snippet. A few snippets with the same differing fields are reported.
    pub(super) fn differ(&mut self, kind: String, snippet: &Snippet, texts: &[String]) {
        let alike = self.different.entry(kind).or_default();
        alike.0 += 1;
        if alike.1.len() < REPORTED_OF_A_KIND {
            let texts = texts.iter().take(REPORTED_OF_A_SNIPPET);
            let texts: String = texts.map(|text| format!("\n    {text}")).collect();
            alike.1.push(format!("{}{texts}", snippet.describe()));
        }
    }

    pub(super) fn count(&mut self, program: &Program, unprobed: &Booted, probed: &Booted) {
        for (number, snippet) in program.snippets.iter().enumerate() {
            let how = match unprobed.record(number).how() {
                How::Next => "next",
                How::Taken => "taken",
                How::Trap => "trap",
                How::NotRun | How::Running => continue,
            };
            *self.left.entry(how).or_default() += 1;
            self.snippets += 1;
            self.instructions += snippet.instructions().count();
        }
        let probes = &probed.summary.probes;
        self.probes += probes.len();
        self.hits += probes.iter().map(|probe| probe.hits).sum::<u64>();
        self.exits += probes.iter().map(|probe| probe.exits).sum::<u64>();
        self.stepped += hits::stepped(probed);
    }

    pub(super) fn conclude(&mut self) -> Result<String, String> {
        let left_out: usize = self.left_out.values().sum();
        let mut counted = format!(
            "{} snippets of {} instructions, left {:?}, {} probes, {} stepped, {} hits, {} exits",
            self.snippets,
            self.instructions,
            self.left,
            self.probes,
            self.stepped,
            self.hits,
            self.exits
        );
        if left_out > 0 {
            let which: Vec<&str> = self.left_out.keys().map(String::as_str).collect();
            counted += &format!(
                ", {left_out} left out with which it comes to a bad end without probes too: {} (the first: {})",
                which.join(", "),
                self.first_bad_end.as_deref().unwrap_or_default()
            );
        }
        if self.different.is_empty() {
            return Ok(counted);
        }
        let mut text = String::new();
        for (kind, (alike, told)) in &self.different {
            text += &format!(
                "{alike} snippets differ in {kind}\n  {}\n",
                told.join("\n  ")
            );
        }
        Err(text + &counted)
    }
}
