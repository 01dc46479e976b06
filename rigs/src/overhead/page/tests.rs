use super::*;

fn line(way: &str, rounds_ns: &[u64], hits: u64, exits: u64) -> String {
    let timing = Line::Timing(Timing {
        backend: Backend::Local,
        guest: "test".to_owned(),
        way: way.to_owned(),
        cpus: 1,
        calls: 10,
        rounds_ns: rounds_ns.to_vec(),
        hits,
        exits,
    });
    serde_json::to_string(&timing).expect("json")
}

fn cells<'a>(page: &'a str, title: &str) -> Vec<&'a str> {
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {title}")));
    row.expect(title).split('|').map(str::trim).collect()
}

#[test]
fn what_a_call_takes_without_the_probe_is_taken_off() {
    let text = [
        line("entry", &[400, 500, 9000], 0, 0),
        line("floor", &[10_500, 10_400, 99_000], 0, 0),
        line("counted", &[1, 2, 3], 10, 10),
        // The last word.
        line("counted", &[12_500, 12_400, 99_000], 10, 10),
        line("returns", &[50_500, 50_400, 99_000], 10, 20),
    ]
    .join("\n");
    let page = page(&Found::from([(Backend::Local, Measured::read(&text))]));
    assert_eq!(cells(&page, "floor")[3..6], ["1.00", "1.00", "1"]);
    assert_eq!(
        cells(&page, "k: kprobe, counted")[3..6],
        ["1.20", "1.00", "1"]
    );
    let counted = cells(&page, "k: kprobe, counted")[2];
    assert!(counted.starts_with("1 200 ["), "{counted}");
    assert_eq!(
        cells(&page, "r: return probe, counted")[3..6],
        ["5.00", "2.00", "2"]
    );
    // Not measured: no cell is made up.
    assert_eq!(cells(&page, "b: kprobe")[2..5], ["", "", ""]);
    assert_eq!(cells(&page, "k ≤ 1.3")[2], "yes: 1.20");
    assert_eq!(cells(&page, "r ≤ 2.5")[2], "**no**: 5.00");
}

#[test]
fn thousands_are_set_off() {
    let numbers = [0.0, 7.4, 999.6, 12_345.0, 1_234_567.0, -4321.0].map(number);
    assert_eq!(
        numbers,
        ["0", "7", "1 000", "12 345", "1 234 567", "-4 321"]
    );
}
