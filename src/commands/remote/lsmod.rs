//! `hyprobe lsmod`.

use control::api::ListedModule;

use super::error::RemoteError;
use super::objects::print;
use super::viewed::Viewed;
use crate::cli::ViewArgs;
use crate::exit::Exit;
use crate::report::printable;

/// Prints the modules of a kernel.
pub(crate) fn lsmod(args: &ViewArgs) -> Result<Exit, RemoteError> {
    let modules = Viewed::open(&args.kernel)?.modules()?;
    print(&modules, args.json, || text(&modules))?;
    Ok(Exit::Done)
}

/// The columns of kmod's `lsmod`.
fn text(modules: &[ListedModule]) -> String {
    let mut text = "Module                  Size  Used by\n".to_owned();
    for module in modules {
        let name = printable(&module.name);
        let count = module
            .refcount
            .map_or("-".to_owned(), |count| count.to_string());
        let permanent = module.permanent.then_some("[permanent]");
        let users = module.users.iter().map(String::as_str).chain(permanent);
        let users: Vec<_> = users.collect();
        let users = users.join(",");
        let line = format!(
            "{name:<19} {:>8}  {count} {}",
            module.size,
            printable(&users)
        );
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_lsmod() {
        let module = |name: &str, refcount: Option<i32>, users: &[&str], permanent| {
            let mut module = serde_json::json!({
                "name": name, "size": 16384, "users": users, "permanent": permanent, "state": "live",
            });
            if let Some(refcount) = refcount {
                module["refcount"] = refcount.into();
            }
            serde_json::from_value::<ListedModule>(module).expect("a module")
        };
        let modules = [
            module("virtio", Some(2), &["virtio_net", "virtio_blk"], false),
            module("tun", Some(0), &[], false),
            module("kept", Some(1), &[], true),
            module("static\x1b", None, &[], false),
        ];
        let expected = "Module                  Size  Used by
virtio                 16384  2 virtio_net,virtio_blk
tun                    16384  0
kept                   16384  1 [permanent]
static\\x1b             16384  -
";
        assert_eq!(text(&modules), expected);
    }
}
