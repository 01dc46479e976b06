use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::devices::recording::Recorder;

/// 2024-02-29 23:58:07 UTC, a Thursday.
fn leap_day() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_709_251_087)
}

fn rtc() -> Rtc {
    Rtc::with_clock(3 << 30, 2 << 30, Arc::new(Recorder::new()), leap_day)
}

fn read(rtc: &Rtc, register: u8) -> u8 {
    rtc.write(INDEX, register);
    rtc.read(DATA)
}

#[test]
fn the_time_is_bcd_and_24_hours() {
    let rtc = rtc();
    let registers = [SECONDS, MINUTES, HOURS, WEEKDAY, DAY, MONTH, YEAR, CENTURY];
    let values = registers.map(|register| read(&rtc, register));
    assert_eq!(values, [0x07, 0x58, 0x23, 0x05, 0x29, 0x02, 0x24, 0x20]);
    assert_eq!(read(&rtc, REGISTER_B), 0x02);
}

#[test]
fn no_update_is_ever_in_progress() {
    let rtc = rtc();
    rtc.write(INDEX, REGISTER_A);
    rtc.write(DATA, 0x80);
    assert_eq!(rtc.read(DATA), 0x26);
    assert_eq!(read(&rtc, REGISTER_C), 0);
    assert_eq!(read(&rtc, REGISTER_D), 0x80);
}

#[test]
fn dates_agree_with_the_calendar() {
    let date = |seconds| {
        let date = DateTime::from(UNIX_EPOCH + Duration::from_secs(seconds));
        (date.year, date.month, date.day, date.weekday)
    };
    assert_eq!(date(0), (1970, 1, 1, 5));
    assert_eq!(date(951_782_400), (2000, 2, 29, 3));
    assert_eq!(date(951_868_800), (2000, 3, 1, 4));
    assert_eq!(date(1_798_675_200), (2026, 12, 31, 5));
    assert_eq!(date(4_107_542_400), (2100, 3, 1, 2));
}

#[test]
fn a_host_before_1970_shows_the_epoch() {
    let before = || UNIX_EPOCH - Duration::from_secs(1);
    let rtc = Rtc::with_clock(0, 0, Arc::new(Recorder::new()), before);
    assert_eq!((read(&rtc, YEAR), read(&rtc, CENTURY)), (0x70, 0x19));
}

#[test]
fn memory_sizes_are_where_a_bios_keeps_them() {
    let rtc = rtc();
    let word = |at| u16::from_le_bytes([read(&rtc, at), read(&rtc, at + 1)]);
    assert_eq!(word(0x15), 640);
    assert_eq!((word(0x17), word(0x30)), (0xffff, 0xffff));
    assert_eq!(word(0x34), 0xbf00);
    assert_eq!((word(0x5b), read(&rtc, 0x5d)), (0x8000, 0));
}

#[test]
fn other_bytes_are_memory() {
    let rtc = rtc();
    rtc.write(INDEX, 0x80 | 0x0f);
    rtc.write(DATA, 0x0a);
    assert_eq!(read(&rtc, 0x0f), 0x0a);
    assert_eq!(rtc.read(INDEX), 0xff);
}

#[test]
fn the_bios_way_to_reboot_resets() {
    let sink = Arc::new(Recorder::new());
    let rtc = Rtc::with_clock(0, 0, sink.clone(), leap_day);
    let set = |index, value| {
        rtc.write(INDEX, index);
        rtc.write(DATA, value);
    };
    // The writes of the start-up of a second CPU.
    set(0x0f, 0x0a);
    set(0x0f, 0);
    assert_eq!(sink.take(), []);
    set(0x8f, 0x0a);
    assert_eq!(sink.take(), []);
    set(0x8f, 0);
    assert_eq!(sink.take(), [Shutdown::Reset]);
}

proptest! {
    #[test]
    fn any_access_is_survived(accesses in prop::collection::vec(any::<(bool, u16, u8)>(), 0..64)) {
        let rtc = rtc();
        for (write, offset, value) in accesses {
            match write {
                true => rtc.write(offset % 3, value),
                false => { let _ = rtc.read(offset % 3); }
            }
        }
    }

    #[test]
    fn every_moment_is_a_date(seconds in 0_u64..200_000_000_000) {
        let date = DateTime::from(UNIX_EPOCH + Duration::from_secs(seconds));
        prop_assert!((1..=12).contains(&date.month) && (1..=31).contains(&date.day));
        prop_assert!((1..=7).contains(&date.weekday));
        prop_assert!(date.hour < 24 && date.minute < 60 && date.second < 60);
    }
}
