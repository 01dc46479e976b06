//! Counters for Prometheus, in the text format 0.0.4.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use events::{ProbeState, ProbeStatus};

use super::app::App;
use crate::api::{MachineState, PauseStats};
use crate::limits::PROBES_LISTED;

/// Counters of the machine and of the first 10 000 probes.
#[utoipa::path(get, path = "/metrics", tag = "metrics",
    responses((status = 200, description = "Text for Prometheus", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let (_, next_event) = app.hub.numbers();
    let now = Now {
        paused: app.state() == MachineState::Paused,
        clock_ns: app.target.clock_ns(),
        events: next_event - 1,
        connections: app.connections(),
        pauses: app.pauses.stats(),
    };
    let text = text(&now, &app.target.statuses());
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

/// Values of the machine, without the probes' counts.
struct Now {
    paused: bool,
    clock_ns: u64,
    events: u64,
    connections: usize,
    pauses: PauseStats,
}

const STATES: [(ProbeState, &str); 5] = [
    (ProbeState::Armed, "armed"),
    (ProbeState::Pending, "pending"),
    (ProbeState::Disabled, "disabled"),
    (ProbeState::Gone, "gone"),
    (ProbeState::Refused, "refused"),
];

fn text(now: &Now, statuses: &[ProbeStatus]) -> String {
    let mut out = Text::default();
    out.one(
        "guest_seconds_total",
        "counter",
        "Time since the guest's first instruction.",
        &seconds(now.clock_ns),
    );
    out.one(
        "paused",
        "gauge",
        "Whether the machine is paused by request.",
        &u8::from(now.paused),
    );
    out.one(
        "events_total",
        "counter",
        "Events that were recorded.",
        &now.events,
    );
    out.one(
        "control_connections",
        "gauge",
        "Clients of the control socket.",
        &now.connections,
    );
    let pauses = &now.pauses;
    out.one(
        "pauses_total",
        "counter",
        "Pauses for changes of probes.",
        &pauses.count,
    );
    out.one(
        "pause_seconds_total",
        "counter",
        "Time that all vCPUs stood for them.",
        &seconds(pauses.held_total_ns),
    );
    out.one(
        "pause_longest_seconds",
        "gauge",
        "The longest of them.",
        &seconds(pauses.held_max_ns),
    );
    out.begin("probes", "gauge", "Probes by their state.");
    for (state, name) in STATES {
        let is_so = |status: &&ProbeStatus| status.summary.state == state;
        let count = statuses.iter().filter(is_so).count();
        out.value("probes", &format!("state=\"{name}\""), &count);
    }
    let (shown, omitted) = statuses.split_at(statuses.len().min(PROBES_LISTED));
    out.one(
        "probes_omitted",
        "gauge",
        "Probes that are not shown here.",
        &omitted.len(),
    );
    let labels: Vec<String> = shown
        .iter()
        .map(|status| {
            format!(
                "id=\"{}\",probe=\"{}\"",
                status.id,
                escaped(&status.summary.probe)
            )
        })
        .collect();
    let probes = || shown.iter().zip(&labels);
    out.begin("probe_hits_total", "counter", "Hits that were handled.");
    for (status, labels) in probes() {
        out.value("probe_hits_total", labels, &status.summary.hits);
    }
    out.begin("probe_exits_total", "counter", "VM exits that hits took.");
    for (status, labels) in probes() {
        out.value("probe_exits_total", labels, &status.summary.exits);
    }
    out.begin(
        "probe_missed_total",
        "counter",
        "Hits that were not handled, by reason.",
    );
    for (status, labels) in probes() {
        for (reason, count) in &status.summary.missed {
            let labels = format!("{labels},reason=\"{}\"", escaped(reason));
            out.value("probe_missed_total", &labels, count);
        }
    }
    out.begin(
        "probe_returns_total",
        "counter",
        "Returns that were handled.",
    );
    for (status, labels) in probes() {
        if let Some(returns) = status.summary.returns {
            out.value("probe_returns_total", labels, &returns);
        }
    }
    out.begin("probe_in_flight", "gauge", "Calls that have not returned.");
    for (status, labels) in probes() {
        if let Some(in_flight) = status.summary.in_flight {
            out.value("probe_in_flight", labels, &in_flight);
        }
    }
    out.0
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn begin(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            self.0,
            "# HELP hyprobe_{name} {help}\n# TYPE hyprobe_{name} {kind}"
        );
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: &dyn fmt::Display) {
        self.begin(name, kind, help);
        let _ = writeln!(self.0, "hyprobe_{name} {value}");
    }

    fn value(&mut self, name: &str, labels: &str, value: &dyn fmt::Display) {
        let _ = writeln!(self.0, "hyprobe_{name}{{{labels}}} {value}");
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Escapes a label's value: symbols come from the guest's kernel, and may contain any character.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use events::ProbeId;
    use events::ProbeSummary;
    use manifest::ProbeKind;

    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_value() {
        let status = ProbeStatus {
            id: ProbeId::from(3),
            name: None,
            kind: ProbeKind::Kretprobe,
            symbol: None,
            module: None,
            enabled: true,
            action: None,
            aggregate: None,
            maxactive: Some(1),
            summary: ProbeSummary {
                probe: "kretprobe:a\"b".to_owned(),
                ip: None,
                hits: 5,
                missed: BTreeMap::from([("maxactive".to_owned(), 2)]),
                tier: None,
                exits: 8,
                returns: Some(3),
                in_flight: Some(0),
                state: ProbeState::Armed,
                reason: None,
                unoptimised: None,
                filter: None,
                result: None,
            },
        };
        let now = Now {
            paused: false,
            clock_ns: 1_500_000_000,
            events: 3,
            connections: 1,
            pauses: PauseStats::default(),
        };
        let text = text(&now, &[status]);
        for line in text.lines() {
            let value = line
                .rsplit_once(' ')
                .and_then(|(_, value)| value.parse::<f64>().ok());
            assert!(line.starts_with("# ") || value.is_some(), "{line}");
        }
        for line in [
            "hyprobe_guest_seconds_total 1.500000000",
            "hyprobe_probes{state=\"armed\"} 1",
            "hyprobe_probe_hits_total{id=\"3\",probe=\"kretprobe:a\\\"b\"} 5",
            "hyprobe_probe_missed_total{id=\"3\",probe=\"kretprobe:a\\\"b\",reason=\"maxactive\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
