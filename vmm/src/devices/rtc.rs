//! The CMOS clock with its memory, ports 0x70 and 0x71.
//!
//! The clock shows the host's time in UTC and cannot be set. The clock raises no interrupt and is
//! never in the middle of an update. (A port that reads 0xff would be in an update for ever: Linux
//! 5.10 waits for the end of the update.)
//!
//! The CMOS memory also resets the machine. On hardware-reduced ACPI, Linux leaves a reboot to EFI,
//! and without EFI falls back on the BIOS: Linux clears the shutdown status, with the NMI masked,
//! and jumps to a reset vector without a BIOS. The device treats the clearing as the reset. (The
//! start-up of a second CPU clears the status too, but does not mask the NMI.)

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::bus::PortDevice;
use super::shutdown::{Shutdown, ShutdownSink};

/// The port that selects a register; the device's first port.
pub const CMOS_INDEX_PORT: u16 = 0x70;
/// The port through which the selected register is read and written.
pub const CMOS_DATA_PORT: u16 = CMOS_INDEX_PORT + DATA;

/// Ports of the clock.
pub const CMOS_PORTS: u8 = 2;

const INDEX: u16 = 0;
const DATA: u16 = 1;
const CMOS_BYTES: usize = 128;
/// Bit 7 of the index masks the NMI.
const INDEX_MASK: u8 = 0x7f;
/// The shutdown status, with the NMI masked.
const SHUTDOWN_STATUS_NO_NMI: u8 = 0x8f;

const SECONDS: u8 = 0x00;
const SECONDS_ALARM: u8 = 0x01;
const MINUTES: u8 = 0x02;
const MINUTES_ALARM: u8 = 0x03;
const HOURS: u8 = 0x04;
const HOURS_ALARM: u8 = 0x05;
const WEEKDAY: u8 = 0x06;
const DAY: u8 = 0x07;
const MONTH: u8 = 0x08;
const YEAR: u8 = 0x09;
const REGISTER_A: u8 = 0x0a;
const REGISTER_B: u8 = 0x0b;
const REGISTER_C: u8 = 0x0c;
const REGISTER_D: u8 = 0x0d;
const CENTURY: u8 = 0x32;

/// Oscillator on, the usual rate of 1024 Hz, no update in progress.
const A_RUNNING: u8 = 0x26;
/// 24-hour clock, BCD, every interrupt off.
const B_24_HOURS: u8 = 0x02;
/// The battery is good; all other bits have to be zero.
const D_VALID: u8 = 0x80;

/// Memory sizes, where a BIOS keeps them.
const BASE_MEMORY_KIB: u8 = 0x15;
const EXTENDED_MEMORY_KIB: [u8; 2] = [0x17, 0x30];
const MEMORY_ABOVE_16_MIB: u8 = 0x34;
const MEMORY_ABOVE_4_GIB: u8 = 0x5b;

const SECONDS_PER_DAY: u64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_EPOCH: u64 = 719_468;
const DAYS_PER_ERA: u64 = 146_097;

/// The clock and its 128 bytes of memory.
pub struct Rtc {
    state: Mutex<State>,
    clock: fn() -> SystemTime,
    sink: Arc<dyn ShutdownSink>,
}

struct State {
    /// As written, mask of the NMI included.
    index: u8,
    memory: [u8; CMOS_BYTES],
}

impl Rtc {
    /// A clock for a machine with `low_ram_bytes` of RAM below and `high_ram_bytes` above the MMIO gap.
    /// The clock reports a reset to `sink`.
    #[must_use]
    pub fn new(low_ram_bytes: u64, high_ram_bytes: u64, sink: Arc<dyn ShutdownSink>) -> Self {
        Self::with_clock(low_ram_bytes, high_ram_bytes, sink, SystemTime::now)
    }

    fn with_clock(
        low_ram_bytes: u64,
        high_ram_bytes: u64,
        sink: Arc<dyn ShutdownSink>,
        clock: fn() -> SystemTime,
    ) -> Self {
        let mut memory = [0; CMOS_BYTES];
        let mut put = |at: u8, value: u64, max: u64, bytes: usize| {
            let at = usize::from(at);
            memory[at..at + bytes].copy_from_slice(&value.min(max).to_le_bytes()[..bytes]);
        };
        put(BASE_MEMORY_KIB, 640, 640, 2);
        for at in EXTENDED_MEMORY_KIB {
            put(at, low_ram_bytes.saturating_sub(1 << 20) >> 10, 0xffff, 2);
        }
        put(
            MEMORY_ABOVE_16_MIB,
            low_ram_bytes.saturating_sub(16 << 20) >> 16,
            0xffff,
            2,
        );
        put(MEMORY_ABOVE_4_GIB, high_ram_bytes >> 16, 0xff_ffff, 3);
        Self {
            state: Mutex::new(State { index: 0, memory }),
            clock,
            sink,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, state: &State) -> u8 {
        let now = || DateTime::from((self.clock)());
        match state.index & INDEX_MASK {
            SECONDS => bcd(now().second),
            MINUTES => bcd(now().minute),
            HOURS => bcd(now().hour),
            WEEKDAY => bcd(now().weekday),
            DAY => bcd(now().day),
            MONTH => bcd(now().month),
            YEAR => bcd(now().year % 100),
            CENTURY => bcd(now().year / 100 % 100),
            SECONDS_ALARM | MINUTES_ALARM | HOURS_ALARM | REGISTER_C => 0,
            REGISTER_A => A_RUNNING,
            REGISTER_B => B_24_HOURS,
            REGISTER_D => D_VALID,
            index => state.memory[usize::from(index)],
        }
    }
}

impl PortDevice for Rtc {
    fn read(&self, offset: u16) -> u8 {
        let state = self.lock();
        match offset {
            DATA => self.register(&state),
            // The index cannot be read back.
            _ => u8::MAX,
        }
    }

    /// A write to a clock register has no visible effect: reads show the host's time and fixed values.
    fn write(&self, offset: u16, value: u8) {
        let mut state = self.lock();
        match offset {
            INDEX => state.index = value,
            DATA => {
                let index = state.index;
                state.memory[usize::from(index & INDEX_MASK)] = value;
                if (index, value) == (SHUTDOWN_STATUS_NO_NMI, 0) {
                    self.sink.shutdown(Shutdown::Reset);
                }
            }
            _ => {}
        }
    }
}

impl fmt::Debug for Rtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rtc")
            .field("index", &self.lock().index)
            .finish_non_exhaustive()
    }
}

/// A moment in UTC, in the fields of the clock's registers.
struct DateTime {
    year: u64,
    month: u64,
    day: u64,
    /// Sunday is 1.
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl From<SystemTime> for DateTime {
    /// The days are counted from the first of March of the year 0, so that leap days come last in
    /// a year, and divided into the calendar's 400-year cycles.
    fn from(time: SystemTime) -> Self {
        // A host clock before 1970 is not set at all; show the epoch.
        let seconds = time
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let (days, second_of_day) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
        let since_march = days + DAYS_TO_EPOCH;
        let (era, day_of_era) = (since_march / DAYS_PER_ERA, since_march % DAYS_PER_ERA);
        let leap_days = day_of_era / 1460;
        let year_of_era =
            (day_of_era - leap_days + day_of_era / 36_524 - day_of_era / (DAYS_PER_ERA - 1)) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        // Months from March have 31 30 31 30 31 days, twice, and a rest.
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = match month_from_march {
            0..10 => month_from_march + 3,
            _ => month_from_march - 9,
        };
        Self {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            // 1970-01-01 was a Thursday.
            weekday: (days + 4) % 7 + 1,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }
}

/// Binary-coded decimal of a number below 100.
fn bcd(value: u64) -> u8 {
    u8::try_from(value / 10 % 10 * 16 + value % 10).unwrap_or_default()
}

#[cfg(test)]
mod tests;
