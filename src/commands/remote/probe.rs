//! `hyprobe probe`.

use std::io::{self, Write};

use control::Client;
use control::api::{AddProbe, AddProbes, Added, ChangeProbe, Pause};
use control::limits::BODY_BYTES;
use events::ProbeStatus;
use manifest::{ProbeAction, ProbeSpec};

use super::connect::connect;
use super::debug_file::identity;
use super::error::RemoteError;
use super::list;
use super::places::{Place, Places};
use super::refused_probes::RefusedProbes;
use super::words::{self, time};
use crate::cli::{AddArgs, IdArgs, ProbeCommand};
use crate::exit::Exit;
use crate::report::{Progress, printable};
use crate::source_lines::{
    self, KnownBuilds, MayFetch, ModuleFiles, NamedFiles, SourceLinesError, SourceSites,
};
use crate::stderr::say;

/// Executes the command.
pub(crate) fn probe(command: &ProbeCommand) -> Result<Exit, RemoteError> {
    let mut out = io::stdout().lock();
    match command {
        ProbeCommand::Add(args) => {
            let client = connect(&args.run)?;
            let places = source_places(args, &client)?;
            let added = client.add(&wanted(args, places))?;
            out.write_all(added_in_words(&added).as_bytes())?;
            // The answer has the first probes only.
            let all = match added.ids.len() > added.probes.len() {
                true => client.probes()?,
                false => added.probes.clone(),
            };
            if let Some(refused) = RefusedProbes::among(&added.ids, &all) {
                return Err(refused.into());
            }
        }
        ProbeCommand::List { run, json } => {
            show(&connect(run)?.probes()?, *json, &mut out)?;
        }
        ProbeCommand::Rm { run, ids, all } => {
            let client = connect(run)?;
            if *all {
                let removed = client.remove_all()?;
                writeln!(
                    out,
                    "removed {} probes{}",
                    removed.removed,
                    cost(removed.pause)
                )?;
            }
            for id in ids {
                let removed = client.remove(id)?;
                for probe in &removed.probes {
                    let hits = probe.summary.hits;
                    let cost = cost(removed.pause);
                    writeln!(out, "removed {} after {hits} hits{cost}", named(probe))?;
                }
            }
        }
        ProbeCommand::Enable(args) => switch(args, true, &mut out)?,
        ProbeCommand::Disable(args) => switch(args, false, &mut out)?,
    }
    Ok(Exit::Done)
}

/// The body of the request. A single probe is not in a list, so an error refers to the whole body.
fn wanted(args: &AddArgs, places: Vec<Place>) -> AddProbes {
    // Counts and aggregates show no variables.
    let is_traced =
        args.aggregate.is_none() && args.action.unwrap_or_default() == ProbeAction::Trace;
    let probe = |place: Place| AddProbe {
        name: args.name.clone(),
        enabled: !args.disabled,
        maxactive: args.maxactive,
        action: args.action,
        filter: args.filter.clone(),
        aggregate: args.aggregate.clone(),
        stack: args.stack,
        variables: if is_traced {
            place.variables
        } else {
            Vec::new()
        },
        ..AddProbe::new(place.spec)
    };
    let mut probes: Vec<AddProbe> = places.into_iter().map(probe).collect();
    let body = serde_json::to_vec(&probes).map_or(0, |body| body.len());
    if body > BODY_BYTES {
        say(format_args!(
            "hyprobe: the hits of {} places show no variables: these do not fit into a request",
            probes.len()
        ));
        for probe in &mut probes {
            probe.variables = Vec::new();
        }
    }
    match <[AddProbe; 1]>::try_from(probes) {
        Ok([probe]) => AddProbes::One(probe),
        Err(probes) => AddProbes::Many(probes),
    }
}

/// The specifications of `args`, with places in place of source lines and inlined copies: the run has no debug information.
fn source_places(args: &AddArgs, client: &Client) -> Result<Vec<Place>, RemoteError> {
    let parsed = |spec: &String| spec.parse::<ProbeSpec>().ok();
    let needs = |spec: &ProbeSpec| spec.location.needs_debug_info();
    let needy: Vec<ProbeSpec> = args.specs.iter().filter_map(parsed).filter(needs).collect();
    if needy.is_empty() {
        return Ok(args
            .specs
            .iter()
            .map(|spec| Place::as_given(spec))
            .collect());
    }
    let named = NamedFiles::new(&args.debug_info).map_err(SourceLinesError::from)?;
    let (kernel, slide) = identity(client)?;
    let progress = Progress::on_stderr();
    let show = |text| progress.say(text);
    let in_kernel = needy.iter().find(|spec| spec.module.is_none());
    let info = match in_kernel {
        Some(spec) => {
            let may_fetch = MayFetch::Yes(&show);
            let info = source_lines::open(named.kernel(), &kernel, &spec.to_string(), may_fetch);
            progress.clear();
            Some(info.map_err(SourceLinesError::from)?)
        }
        // Lines of modules need no file of the kernel, but a file that the user names has to be the kernel's.
        None => match source_lines::open(named.kernel(), &kernel, "", MayFetch::No) {
            Err(error) if named.kernel().is_some() => {
                return Err(SourceLinesError::from(error).into());
            }
            opened => opened.ok(),
        },
    };
    let in_modules = needy.iter().any(|spec| spec.module.is_some());
    let builds = match in_modules {
        true => loaded_builds(client),
        false => KnownBuilds::Nowhere,
    };
    let modules = ModuleFiles::new(&kernel, info.as_ref(), named).with_builds(builds);
    // The build-ids are equal, so the symbols are the kernel's.
    let symbols = info.as_ref().map(|info| info.symbols().clone());
    let symbols = symbols.unwrap_or_default();
    let mut sites = SourceSites::new(info.as_ref(), &symbols, slide, modules);
    let mut places = Places::default();
    for text in &args.specs {
        match parsed(text) {
            Some(spec) if needs(&spec) => {
                let found = sites.of(&spec, MayFetch::Yes(&show));
                progress.clear();
                let found = found.map_err(|error| SourceLinesError::of_sites(&spec, error))?;
                for note in found.notes(&spec) {
                    say(format_args!("hyprobe: {}", printable(&note)));
                }
                places.push(text, found.sites.into_iter().map(Place::from).collect());
            }
            // The run says what is wrong with a specification.
            _ => places.push(text, vec![Place::as_given(text)]),
        }
    }
    Ok(places.into_request(args.name.as_deref())?)
}

/// The builds of the modules that the guest has loaded. Without them, the search goes by the names of files.
fn loaded_builds(client: &Client) -> KnownBuilds {
    let Ok(loaded) = client.modules() else {
        return KnownBuilds::Nowhere;
    };
    let builds = loaded.modules.into_iter();
    let builds = builds.filter_map(|module| Some((module.name, module.build_id?)));
    KnownBuilds::Loaded(builds.collect())
}

fn added_in_words(added: &Added) -> String {
    let mut text: String = added.probes.iter().map(line).collect();
    let more = added.ids.len() - added.ids.len().min(added.probes.len());
    if more > 0 {
        text.push_str(&format!("… and {more} more\n"));
    }
    if added.pause != Pause::default() {
        text.push_str(&format!(
            "the guest stood for {}\n",
            time(added.pause.held_ns)
        ));
    }
    text
}

fn line(probe: &ProbeStatus) -> String {
    let state = words::probe(probe.summary.state);
    let reason = probe.summary.reason.as_ref();
    let reason = reason
        .map(|reason| format!(": {}", printable(reason)))
        .unwrap_or_default();
    format!("{} {state}{reason}\n", named(probe))
}

/// The probe's number, name and place.
fn named(probe: &ProbeStatus) -> String {
    let name = probe.name.as_ref();
    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
    let place = printable(&probe.summary.probe);
    format!("{}{name}  {place}", probe.id)
}

/// The duration of the guest's pause, or nothing without a pause.
fn cost(pause: Pause) -> String {
    match pause == Pause::default() {
        true => String::new(),
        false => format!(" (the guest stood for {})", time(pause.held_ns)),
    }
}

fn show(probes: &[ProbeStatus], json: bool, out: &mut impl Write) -> Result<(), RemoteError> {
    if !json {
        out.write_all(list::table(probes).as_bytes())?;
        return Ok(());
    }
    for probe in probes {
        serde_json::to_writer(&mut *out, probe).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

fn switch(args: &IdArgs, enabled: bool, out: &mut impl Write) -> Result<(), RemoteError> {
    let client: Client = connect(&args.run)?;
    let change = ChangeProbe {
        enabled: Some(enabled),
        name: None,
    };
    for id in &args.ids {
        let changed = client.change(id, &change)?;
        for probe in &changed.probes {
            out.write_all(line(probe).as_bytes())?;
        }
    }
    Ok(())
}
