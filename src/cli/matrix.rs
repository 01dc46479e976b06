//! `--matrix` and `--shard`.

use std::str::FromStr;

use manifest::{Word as _, units};

use super::run::RunArgs;
use crate::config::Boot;

/// The keys of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Kernel,
    Cpus,
    Memory,
    Boot,
    Cmdline,
}

const KEYS: [(&str, Key); 5] = [
    ("kernel", Key::Kernel),
    ("cpus", Key::Cpus),
    ("memory", Key::Memory),
    ("boot", Key::Boot),
    ("cmdline", Key::Cmdline),
];

/// An axis of the matrix: `cpus=1,2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axis(Vec<Setting>);

/// A value of an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    key: Key,
    name: &'static str,
    value: String,
}

impl FromStr for Axis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = || KEYS.map(|(name, _)| name).join(", ");
        let (name, values) = text
            .split_once('=')
            .ok_or_else(|| format!("write KEY=VALUE,VALUE with one of the keys {}", names()))?;
        let (name, key) = KEYS
            .into_iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| format!("`{name}` is none of the keys {}", names()))?;
        let settings = values.split(',').map(|value| {
            let setting = Setting {
                key,
                name,
                value: value.to_owned(),
            };
            setting.apply(&mut RunArgs::default())?;
            Ok(setting)
        });
        settings.collect::<Result<_, String>>().map(Self)
    }
}

impl Setting {
    /// Puts the setting over the manifest.
    pub(crate) fn apply(&self, args: &mut RunArgs) -> Result<(), String> {
        let value = &self.value;
        if value.is_empty() {
            return Err(format!("`{}` has an empty value", self.name));
        }
        match self.key {
            // A name has no slash; a file in the working directory is `./vmlinuz`.
            Key::Kernel if value.contains('/') => {
                args.image = None;
                args.kernel = Some(value.into());
            }
            Key::Kernel => {
                args.kernel = None;
                args.image = Some(value.clone());
            }
            Key::Cpus => {
                let most = vmm::boot::MAX_VCPUS;
                let cpus = value.parse().ok().filter(|cpus| (1..=most).contains(cpus));
                args.cpus = Some(cpus.ok_or_else(|| format!("`cpus` is from 1 to {most}"))?);
            }
            Key::Memory => {
                args.memory = Some(units::parse_size(value).map_err(|error| error.to_string())?);
            }
            Key::Boot => {
                let boot = Boot::from_word(value);
                args.boot = Some(boot.ok_or_else(|| "`boot` is direct or bzimage".to_owned())?);
            }
            Key::Cmdline => args.cmdline = Some(value.clone()),
        }
        Ok(())
    }

    /// For the name of a case.
    pub(crate) fn in_words(&self) -> String {
        format!("{}={}", self.name, self.value)
    }
}

/// Each combination of a value of every axis.
pub(crate) fn combinations(axes: &[Axis]) -> Vec<Vec<Setting>> {
    let mut combinations = vec![Vec::new()];
    for Axis(settings) in axes {
        combinations = combinations
            .into_iter()
            .flat_map(|chosen: Vec<Setting>| {
                settings.iter().map(move |setting| {
                    let mut chosen = chosen.clone();
                    chosen.push(setting.clone());
                    chosen
                })
            })
            .collect();
    }
    combinations
}

/// A part of all cases, for tests on several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    /// From 1.
    number: usize,
    of: usize,
}

impl Shard {
    pub(crate) const ALL: Self = Self { number: 1, of: 1 };

    /// Whether the shard has the case with the number `case`.
    pub(crate) fn has(self, case: usize) -> bool {
        case % self.of == self.number - 1
    }
}

impl FromStr for Shard {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, of) = text.split_once('/').ok_or("write it as 1/3, 2/3, 3/3")?;
        let shard = match (number.parse(), of.parse()) {
            (Ok(number), Ok(of)) => Self { number, of },
            _ => return Err("write it as 1/3, 2/3, 3/3"),
        };
        if (1..=shard.of).contains(&shard.number) {
            Ok(shard)
        } else {
            Err("the first number is from 1 to the second")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(axes: &[&str]) -> Vec<String> {
        let axes: Vec<Axis> = axes.iter().map(|axis| axis.parse().expect(axis)).collect();
        let name = |settings: Vec<Setting>| {
            let words: Vec<_> = settings.iter().map(Setting::in_words).collect();
            words.join(" ")
        };
        combinations(&axes).into_iter().map(name).collect()
    }

    #[test]
    fn every_combination_is_there_once() {
        assert_eq!(names(&[]), [""]);
        assert_eq!(
            names(&["kernel=a,./b", "cpus=1,2"]),
            [
                "kernel=a cpus=1",
                "kernel=a cpus=2",
                "kernel=./b cpus=1",
                "kernel=./b cpus=2"
            ]
        );
    }

    #[test]
    fn a_kernel_is_a_name_or_a_file() {
        let applied = |text: &str| {
            let Axis(settings) = text.parse().expect(text);
            let mut args = RunArgs {
                kernel: Some("old".into()),
                ..RunArgs::default()
            };
            settings[0].apply(&mut args).expect(text);
            args
        };
        let name = applied("kernel=debian-6.1");
        assert_eq!(
            (name.image.as_deref(), name.kernel),
            (Some("debian-6.1"), None)
        );
        assert_eq!(applied("kernel=/k").kernel, Some("/k".into()));
        assert_eq!(applied("memory=1G").memory, Some(1 << 30));
    }

    #[test]
    fn wrong_axes_say_why() {
        for wrong in ["cpus", "cpu=1", "cpus=0", "cpus=1,", "memory=x", "boot=pxe"] {
            wrong.parse::<Axis>().expect_err(wrong);
        }
    }

    #[test]
    fn shards_share_all_cases() {
        let shards: Vec<Shard> = ["1/3", "2/3", "3/3"]
            .map(|text| text.parse().expect(text))
            .to_vec();
        for case in 0..10 {
            assert_eq!(shards.iter().filter(|shard| shard.has(case)).count(), 1);
        }
        for wrong in ["0/3", "4/3", "1", "1/0", "x/3"] {
            wrong.parse::<Shard>().expect_err(wrong);
        }
    }
}
