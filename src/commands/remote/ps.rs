//! `hyprobe ps`.

use control::api::ListedTask;

use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::PsArgs;
use crate::exit::Exit;
use crate::report::printable;

/// Prints the tasks of a kernel.
pub(crate) fn ps(args: &PsArgs) -> Result<Exit, RemoteError> {
    let tasks = Viewed::open(&args.view.kernel)?.tasks(args.threads)?;
    print(&tasks, args.view.json, || text(&tasks, args.threads))?;
    Ok(Exit::Done)
}

/// The columns of `ps`, with a column for the thread if `threads`.
fn text(tasks: &[ListedTask], threads: bool) -> String {
    let heading = if threads {
        format!(" {:>7}", "TID")
    } else {
        String::new()
    };
    let mut text = format!(
        "{:>7}{heading} {:>7} {:>7} S COMMAND\n",
        "PID", "PPID", "UID"
    );
    for task in tasks {
        let tid = if threads {
            format!(" {:>7}", task.tid)
        } else {
            String::new()
        };
        let ListedTask {
            pid,
            ppid,
            euid,
            state,
            ..
        } = task;
        let command = command(task);
        let command = printable(&command);
        text.push_str(&format!(
            "{pid:>7}{tid} {ppid:>7} {euid:>7} {state} {command}\n"
        ));
    }
    text
}

/// The command line, or the name in brackets.
fn command(task: &ListedTask) -> String {
    match task.cmdline.is_empty() {
        true => format!("[{}]", task.comm),
        false => task.cmdline.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_ps() {
        let task = |tid: i32, cmdline: &[&str]| ListedTask {
            pid: 1,
            tid,
            ppid: 0,
            uid: 0,
            euid: 1000,
            state: 'S',
            comm: "in\x1bit".to_owned(),
            kernel_thread: false,
            cgroup: None,
            cmdline: cmdline.iter().map(|&word| word.to_owned()).collect(),
        };
        let tasks = [task(1, &["/init", "a\nb"]), task(7, &[])];
        let expected = "    PID    PPID     UID S COMMAND
      1       0    1000 S /init a\\nb
      1       0    1000 S [in\\x1bit]
";
        assert_eq!(text(&tasks, false), expected);
        let expected = "    PID     TID    PPID     UID S COMMAND
      1       1       0    1000 S /init a\\nb
      1       7       0    1000 S [in\\x1bit]
";
        assert_eq!(text(&tasks, true), expected);
    }
}
