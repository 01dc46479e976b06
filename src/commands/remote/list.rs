//! The table of `list`: like the kernel's own list of kprobes, with the results of each probe behind.

use events::{ProbeState, ProbeStatus, Tier};
use manifest::ProbeKind;

use super::words;
use crate::report::{printable, total};

/// A line for each probe: number and name; address, `k`, `r`, `s`, `sr` or `t`, place, module, flags; hits, missed, tier.
pub(super) fn table(probes: &[ProbeStatus]) -> String {
    let rows: Vec<[String; 6]> = probes.iter().map(row).collect();
    let headings = ["ID", "ADDRESS", "", "PLACE", "HITS", "MISSED"];
    let mut widths = headings.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: &[String; 6], rest: &str, below: &str| {
        let [id, address, kind, place, hits, missed] = cells;
        let [w0, w1, w2, w3, w4, w5] = widths;
        let line = format!(
            "{id:>w0$}  {address:<w1$}  {kind:<w2$}  {place:<w3$}  {hits:>w4$}  {missed:>w5$}  {rest}"
        );
        out.push_str(line.trim_end());
        out.push('\n');
        out.push_str(below);
    };
    line(&headings.map(str::to_owned), "TIER", "");
    for (row, probe) in rows.iter().zip(probes) {
        line(row, &tier(probe), &program(probe));
    }
    out
}

/// The tier of the probe's hits and, if hits exit without need, the reason.
fn tier(probe: &ProbeStatus) -> String {
    let tier = words::tier(probe.summary.tier);
    match &probe.summary.unoptimised {
        Some(why) => format!("{tier}  {}", printable(why)),
        None => tier.to_owned(),
    }
}

/// The filter and the aggregate's result, each in a line or in several.
fn program(probe: &ProbeStatus) -> String {
    let filter = probe.summary.filter.as_ref();
    let filter = filter.map(|filter| format!("filter: {filter}"));
    let result = probe.summary.result.as_ref().map(ToString::to_string);
    let texts = filter.into_iter().chain(result);
    texts
        .flat_map(|text| {
            text.lines()
                .map(|line| format!("  {}\n", printable(line)))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn row(probe: &ProbeStatus) -> [String; 6] {
    let summary = &probe.summary;
    let kind = match probe.kind {
        ProbeKind::Kprobe => "k",
        ProbeKind::Kretprobe => "r",
        ProbeKind::Syscall => "s",
        ProbeKind::Retsyscall => "sr",
        ProbeKind::Tracepoint => "t",
        ProbeKind::Watch => "w",
        ProbeKind::Uprobe => "u",
        ProbeKind::Uretprobe => "ur",
        ProbeKind::Usdt => "m",
    };
    // If the symbol is not known yet, the request is printed.
    let mut place = probe.symbol.as_deref().unwrap_or(&summary.probe).to_owned();
    if let Some(module) = &probe.module {
        place.push_str(&format!("  [{module}]"));
    }
    for flag in flags(probe) {
        place.push_str(&format!("  [{flag}]"));
    }
    let id = match &probe.name {
        Some(name) => format!("{} {name}", probe.id),
        None => probe.id.to_string(),
    };
    [
        id,
        summary
            .ip
            .map_or_else(|| "-".to_owned(), |ip| format!("{:016x}", ip.0)),
        kind.to_owned(),
        printable(&place).into_owned(),
        summary.hits.to_string(),
        total(summary.missed.values().copied()).to_string(),
    ]
}

fn flags(probe: &ProbeStatus) -> impl Iterator<Item = &'static str> {
    let state = match probe.summary.state {
        ProbeState::Armed => None,
        ProbeState::Pending => Some("PENDING"),
        // A disabled probe may have its own switch on: the knob disables all probes.
        ProbeState::Disabled => Some("DISABLED"),
        ProbeState::Gone => Some("GONE"),
        ProbeState::Refused => Some("REFUSED"),
    };
    let switched_off = !probe.enabled && probe.summary.state != ProbeState::Disabled;
    let is_optimised =
        probe.summary.tier == Some(Tier::Optimised) && probe.summary.state == ProbeState::Armed;
    state
        .into_iter()
        .chain(switched_off.then_some("DISABLED"))
        .chain(is_optimised.then_some("OPTIMIZED"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn probe(id: u64, more: serde_json::Value) -> ProbeStatus {
        let mut value = json!({
            "id": id, "kind": "kprobe", "enabled": true, "action": "trace", "probe": "kprobe:vfs_read",
            "hits": 0, "missed": {}, "exits": 0, "state": "armed",
        });
        for (key, more) in more.as_object().expect("object") {
            value[key] = more.clone();
        }
        serde_json::from_value(value).expect("a probe")
    }

    #[test]
    fn columns() {
        let probes = [
            probe(
                1,
                json!({"ip": "0xffffffff81349950", "symbol": "vfs_read+0x0", "hits": 12, "tier": "emulated"}),
            ),
            probe(
                20,
                json!({"kind": "kretprobe", "name": "back", "module": "dummy", "probe": "kretprobe:dummy:f",
                    "state": "pending", "enabled": false, "missed": {"maxactive": 3}}),
            ),
            probe(
                3,
                json!({"symbol": "f+0x0", "hits": 7, "exits": 1, "tier": "optimised"}),
            ),
            probe(
                4,
                json!({"symbol": "g+0x0", "tier": "emulated", "unoptimised": "another probe is there"}),
            ),
            probe(
                5,
                json!({"symbol": "h+0x0", "filter": "cpu == 1", "result": {"kind": "sum", "of": "arg2", "count": 2, "value": 9}}),
            ),
        ];
        let expected = "     ID  ADDRESS              PLACE                                              HITS  MISSED  TIER
      1  ffffffff81349950  k  vfs_read+0x0                                         12       0  emulated
20 back  -                 r  kretprobe:dummy:f  [dummy]  [PENDING]  [DISABLED]     0       3  -
      3  -                 k  f+0x0  [OPTIMIZED]                                    7       0  optimised
      4  -                 k  g+0x0                                                 0       0  emulated  another probe is there
      5  -                 k  h+0x0                                                 0       0  -
  filter: cpu == 1
  sum(arg2): 9
";
        assert_eq!(table(&probes), expected);
    }
}
