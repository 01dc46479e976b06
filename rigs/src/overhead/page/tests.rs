use super::*;
use crate::line::Boot;

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
fn time_of_a_call_without_the_probe_is_subtracted() {
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
fn targets_are_compared() {
    let boot = |kind, ran_ns| {
        let boot = Line::Boot(Boot {
            backend: Backend::Local,
            guest: "stock".to_owned(),
            kind,
            set_up_ns: vec![1_000_000],
            ran_ns: vec![ran_ns],
            probes: 4,
            hits: 9,
            missed: 0,
            exits: 5,
        });
        serde_json::to_string(&boot).expect("json")
    };
    let jumps = WAYS.iter().filter(|way| way.jumps);
    let jumps = jumps.map(|way| line(way.key, &[500], 1000, 0));
    let others = [
        // Without hits, the calls count: three exits of ten.
        line("filtered", &[500], 0, 3),
        line("stock-none", &[10_000], 0, 0),
        line("stock-own-kprobe", &[30_000], 0, 0),
        line("stock-recorded", &[20_000], 10, 0),
        line("records", &[1_000_000], 2000, 4),
        line("taken-out", &[1230], 0, 0),
        line("stock-shared", &[20_000], 100, 3),
        boot(BootKind::NoEngine, 2_000_000_000),
        boot(BootKind::Engine, 3_000_000_000),
        boot(BootKind::AllProbed, 8_000_000_000),
    ];
    let text: Vec<_> = jumps.chain(others).collect();
    let page = page(&Found::from([(
        Backend::Local,
        Measured::read(&text.join("\n")),
    )]));
    assert_eq!(cells(&page, "o: no exits")[2], "**no**: 30.00");
    assert_eq!(cells(&page, "o: a count")[2], "yes: 6.00");
    assert_eq!(cells(&page, "o, a record")[2], "yes: 0.50");
    assert_eq!(cells(&page, "local, stock | engine, no")[5], "1.500");
    let all = cells(&page, "local, stock | engine, `kprobe:*`");
    assert_eq!(all[5..10], ["4.000", "4", "9", "0", "5"]);
    assert_eq!(cells(&page, "o+ro, four")[2], "**no**: 3.00");
    assert_eq!(cells(&page, "`kprobe:*`: powers off")[2], "**no**: 4.00");
    assert_eq!(cells(&page, "`kprobe:*`: at most")[2], "yes: 5.00");
    let records = "| local | 10 000 | 2.00 |  |  | 123 |";
    assert!(page.contains(records), "{page}");
}

#[test]
fn typed_event_has_a_row_and_an_untyped_one_another() {
    let text = [
        line("stock-none", &[10_000], 0, 0),
        line("stock-kprobe", &[50_000], 10, 10),
        line("stock-untyped", &[40_000], 10, 10),
    ];
    let page = page(&Found::from([(
        Backend::Local,
        Measured::read(&text.join("\n")),
    )]));
    let row = |title: &str| {
        let row = format!("local, debian-6.1 | k: ours, {title}");
        cells(&page, &row)[3..6].join("; ")
    };
    let typed = row("emitted as an event with types");
    assert_eq!(typed, "5 000 [5 000, 5 000]; 4 000; 1.00");
    let untyped = row("within the function: emitted as an event without types");
    assert_eq!(untyped, "4 000 [4 000, 4 000]; 3 000; 1.00");
}

#[test]
fn probe_in_a_program_is_compared_with_the_call_of_the_same_function() {
    let text = [
        line("stock-none", &[10_000], 0, 0),
        line("stock-function", &[1000], 0, 0),
        line("stock-uprobe-counted", &[40_000], 60, 60),
        line("stock-own-uprobe", &[20_000], 0, 0),
        line("stock-write", &[5000], 0, 0),
        line("stock-watch-emitted", &[30_000], 60, 63),
    ];
    let page = page(&Found::from([(
        Backend::Local,
        Measured::read(&text.join("\n")),
    )]));
    let row = |title: &str| {
        let row = format!("local, debian-6.1 | {title}");
        cells(&page, &row)[4..6].join("; ")
    };
    assert_eq!(row("a call of a function"), "; ");
    assert_eq!(row("u: ours, counted"), "3 900; 1.00");
    assert_eq!(row("the guest's own uprobe event"), "1 900; ");
    assert_eq!(row("w: ours, emitted"), "2 500; 1.05");
    // Not measured: no row.
    assert!(!page.contains("w: ours, counted"), "{page}");
}

#[test]
fn thousands_are_set_off() {
    let numbers = [0.0, 7.4, 999.6, 12_345.0, 1_234_567.0, -4321.0].map(number);
    assert_eq!(
        numbers,
        ["0", "7", "1 000", "12 345", "1 234 567", "-4 321"]
    );
}
