use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use events::{GuestSummary, Note};
use manifest::GuestEnd;

use super::*;
use crate::report::frame_lines::tests::{Fixture, summary_at};

/// A place to write to that can be looked at, and that can be closed or full after some bytes.
#[derive(Clone, Default)]
struct Paper {
    text: Arc<Mutex<Vec<u8>>>,
    ends: Option<(usize, io::ErrorKind)>,
}

impl Paper {
    fn that_ends(after: usize, with: io::ErrorKind) -> Self {
        Self {
            ends: Some((after, with)),
            ..Self::default()
        }
    }

    fn text(&self) -> String {
        let text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text).into_owned()
    }

    fn stream(&self) -> Stream {
        Stream::new("paper".to_owned(), self.clone(), false, &Arc::default())
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        match self.ends {
            Some((after, with)) if text.len() + bytes.len() > after => Err(with.into()),
            _ => {
                text.extend_from_slice(bytes);
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn note(text: &str) -> Message {
    let note = Note {
        ts_ns: 1_000_000,
        probe: None,
        text: text.to_owned(),
    };
    Message::Event(Box::new(Event::Note(note)))
}

fn console(text: &str) -> Message {
    Message::Console(text.as_bytes().to_vec())
}

fn end(refused_events: u64) -> Message {
    end_after(0, refused_events)
}

/// The end of a run whose summary says that events had been lost before.
fn end_after(dropped: u64, refused_events: u64) -> Message {
    let guest = GuestSummary {
        end: GuestEnd::Poweroff,
        detail: None,
        crash: None,
        vcpus: Vec::new(),
        log: None,
    };
    let summary = Summary {
        accel: "kvm".to_owned(),
        guest,
        ran_ns: 0,
        probes: Vec::new(),
        dropped,
        restarts: Vec::new(),
    };
    Message::End {
        summary: Some(Box::new(summary)),
        refused: Refused {
            events: refused_events,
            console_bytes: 0,
        },
    }
}

/// The JSON lines of a run whose only vCPU ends in the fixture's frame.
fn end_with_lines(fixture: Fixture) -> String {
    let summary = Box::new(summary_at(&fixture.frame()));
    let (sender, receiver) = crossbeam_channel::unbounded();
    let end = Message::End {
        summary: Some(summary),
        refused: Refused::default(),
    };
    sender.send(end).expect("send");
    let paper = Paper::default();
    let writer = Writer {
        format: EventFormat::Json,
        events: paper.stream(),
        console: ConsoleTarget::Nowhere,
        table: None,
        frame_lines: Some(fixture.lines),
        progress: Progress::hidden(),
        stop: StopSignal::default(),
    };
    assert!(writer.run(&receiver).is_empty());
    paper.text()
}

#[test]
fn summary_has_the_source_lines_of_its_stacks() {
    let text = end_with_lines(Fixture::build());
    assert!(text.contains(r#""source":{"file":"console.c""#), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn reason_for_missing_source_lines_is_a_note_in_front_of_the_event() {
    let mut fixture = Fixture::build();
    fixture.damage();
    let text = end_with_lines(fixture);
    let lines: Vec<Event> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let [Event::Note(note), Event::Summary(summary)] = lines.as_slice() else {
        panic!("{text}")
    };
    assert!(
        note.text
            .starts_with("frames of stacks have no source lines: "),
        "{note:?}"
    );
    assert_eq!(note.ts_ns, summary.ran_ns);
}

struct Outcome {
    failures: Vec<WriteFailure>,
    stopped: Option<StopReason>,
}

/// Lets a writer take these messages.
fn write(
    format: EventFormat,
    events: &Paper,
    console: ConsoleTarget,
    table: Option<&Paper>,
    messages: Vec<Message>,
) -> Outcome {
    let stop = StopSignal::default();
    let writer = Writer {
        format,
        events: events.stream(),
        console,
        table: table.map(|paper| (paper.stream(), Style::plain())),
        frame_lines: None,
        progress: Progress::hidden(),
        stop: stop.clone(),
    };
    let (sender, receiver) = crossbeam_channel::unbounded();
    let thread = std::thread::spawn(move || writer.run(&receiver));
    for message in messages {
        sender.send(message).expect("send");
    }
    Outcome {
        failures: thread.join().expect("writer"),
        stopped: stop.requested(),
    }
}

fn text(among_console: bool) -> EventFormat {
    EventFormat::Text(text::Formatter::new(Style::plain(), among_console))
}

#[test]
fn console_and_events_share_a_stream_in_text() {
    let paper = Paper::default();
    let messages = vec![
        console("boot\r\nlo"),
        note("hit"),
        console("gin\r\n"),
        console("# "),
        end(0),
    ];
    let outcome = write(
        text(true),
        &paper,
        ConsoleTarget::WithEvents,
        None,
        messages,
    );
    assert!(outcome.failures.is_empty() && outcome.stopped.is_none());
    assert_eq!(
        paper.text(),
        "boot\n>>    0.001000  note   hit\nlogin\n# \n\nThe guest powered off after 0.000000 s (kvm)\n"
    );
}

#[test]
fn json_keeps_the_console_out_and_ends_with_the_summary() {
    let (events, serial) = (Paper::default(), Paper::default());
    let target = ConsoleTarget::Own(serial.stream());
    let messages = vec![console("boot\r\n"), note("hit"), end(2)];
    let outcome = write(EventFormat::Json, &events, target, None, messages);
    assert_eq!(serial.text(), "boot\r\n");
    // Two events never came as far as the stream.
    let [failure] = &outcome.failures[..] else {
        panic!("{:?}", outcome.failures);
    };
    assert_eq!(failure.error.kind(), io::ErrorKind::TimedOut);
    assert!(matches!(failure.lost, Lost::Events { events: 2, .. }));
    let text = events.text();
    let lines: Vec<Event> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let [Event::Note(_), Event::Summary(summary)] = lines.as_slice() else {
        panic!("{text}")
    };
    assert_eq!(summary.dropped, 2);
}

/// The number of a nested run comes from the outer Linux.
#[test]
fn lost_events_of_a_summary_end_at_the_greatest_number() {
    let events = Paper::default();
    let messages = vec![end_after(u64::MAX - 1, 2)];
    write(
        EventFormat::Json,
        &events,
        ConsoleTarget::Nowhere,
        None,
        messages,
    );
    let text = events.text();
    let Ok(Event::Summary(summary)) = serde_json::from_str(text.trim()) else {
        panic!("{text}")
    };
    assert_eq!(summary.dropped, u64::MAX);
}

#[test]
fn events_in_a_file_leave_the_table_for_standard_output() {
    let (events, table) = (Paper::default(), Paper::default());
    write(
        EventFormat::Json,
        &events,
        ConsoleTarget::Nowhere,
        Some(&table),
        vec![end(0)],
    );
    assert!(events.text().starts_with("{\"type\":\"summary\""));
    assert!(table.text().contains("powered off"));
}

#[test]
fn a_reader_that_has_gone_ends_the_run_and_is_no_failure() {
    let paper = Paper::that_ends(0, io::ErrorKind::BrokenPipe);
    let messages = vec![note("one"), end(0)];
    let outcome = write(
        EventFormat::Json,
        &paper,
        ConsoleTarget::Nowhere,
        None,
        messages,
    );
    assert_eq!(outcome.stopped, Some(StopReason::OutputClosed));
    assert!(outcome.failures.is_empty());
}

#[test]
fn events_lost_to_a_full_disk_are_counted_and_reported() {
    let (paper, table) = (
        Paper::that_ends(0, io::ErrorKind::StorageFull),
        Paper::default(),
    );
    let messages = vec![note("one"), note("two"), end(1)];
    let outcome = write(
        text(false),
        &paper,
        ConsoleTarget::Nowhere,
        Some(&table),
        messages,
    );
    let [failure] = &outcome.failures[..] else {
        panic!("{:?}", outcome.failures);
    };
    let Lost::Events { events: 3, bytes } = failure.lost else {
        panic!("{failure}");
    };
    assert!(bytes > 0, "{failure}");
    assert_eq!(outcome.stopped, None);
    assert!(
        table.text().contains("3 events could not be written"),
        "{}",
        table.text()
    );
}

#[test]
fn console_bytes_lost_to_a_full_disk_are_counted_and_reported() {
    let (events, serial) = (
        Paper::default(),
        Paper::that_ends(0, io::ErrorKind::StorageFull),
    );
    let target = ConsoleTarget::Own(serial.stream());
    let messages = vec![
        console("boot\r\n"),
        note("hit"),
        console("login\r\n"),
        end(0),
    ];
    let outcome = write(EventFormat::Json, &events, target, None, messages);
    let [failure] = &outcome.failures[..] else {
        panic!("{:?}", outcome.failures);
    };
    assert_eq!(failure.lost, Lost::Bytes(13), "{failure}");
    assert_eq!(events.text().lines().count(), 2);
}
